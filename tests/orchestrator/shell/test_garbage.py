"""Garbage on an agent's connections: closed with a reason and one log line; others do not notice.

A coordinator, a loop and a bystander serve all examples; each example is a connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.protocol.link.codec import FRAME_BYTES_MAX, ReportFrame, encode
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    Heartbeat,
    HeartbeatAck,
    Refused,
    TaskReport,
)
from muster.protocol.link.log_channel import (
    Chunk,
    LogHello,
    StreamId,
    StreamKind,
    encode_chunk,
    encode_text,
)
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, connect, hello
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, user_of
from tests.strategies import TEXTS, struct

T = TypeVar("T")
MEMORY_MIB = 96
SETTINGS = settings(
    max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Scene:
    """A coordinator with a job that runs on the node `bystander`."""

    def __init__(self, folder: Path) -> None:
        # A bystander speaks between examples only, and it is not silence that is tried here.
        self.process = CoordinatorProcess(folder, heartbeat_s=60, lease_s=600).start()
        self.loop = asyncio.new_event_loop()
        self.beats = 0.0
        self.run(self._begin())

    async def _begin(self) -> None:
        self._context = connect(self.process, "bystander")
        self.agent: FakeAgent = await self._context.__aenter__()
        await self.agent.hello()
        async with user_of(self.process) as user:
            self.job = await user.submit()
        self.task = await self.agent.prepare()
        await self.agent.arrange(self.task)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(story, DEADLINE_S))

    async def others_go_on(self) -> None:
        self.beats += 1.0
        await self.agent.say(Heartbeat(self.beats))
        while await self.agent.hear() != HeartbeatAck(self.beats):
            pass

    def memory_mib(self) -> float:
        assert self.process._process is not None
        status = Path(f"/proc/{self.process._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        self.run(self._context.__aexit__(None, None, None))
        self.loop.close()
        self.process.kill()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("garbage"))
    yield made
    made.close()
    events = [line["event"] for line in made.process.log]
    assert not {"task_failed", "coordinator_failed", "text"} & set(events), events


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` with a few bytes changed, cut off, or doubled."""
    place = st.integers(0, len(data) - 1)

    def change(given: tuple[int, bytes, int]) -> bytes:
        at, put, drop = given
        return data[:at] + put + data[at + drop :]

    return st.tuples(place, st.binary(max_size=4), st.integers(0, len(data))).map(change)


HELLO = encode(ReportFrame(1, hello("garbage")))
REPORT = encode(ReportFrame(2, TaskReport("1.1.0", TaskState.STARTED)))  # type: ignore[arg-type]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.one_of(
    st.binary(max_size=200),
    mutated(HELLO),
    mutated(REPORT),
    JSON.map(lambda tree: json.dumps(tree).encode()),
    JSON.map(lambda tree: json.dumps({"seq": 1, "body": tree}).encode()),
    st.sampled_from([b"", b"x" * (FRAME_BYTES_MAX + 1), b"[" * 100_000, b'{"seq":1e400}']),
)


def several(frames: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[tuple[bytes, bool]]]:
    """Frames, each to be sent as text or as bytes."""
    return st.lists(st.tuples(frames, st.booleans()), min_size=1, max_size=3)


async def throw(scene: Scene, path: str, first: list[bytes | str], frames: list[Any]) -> str:
    """Say all that on a connection of its own; returns why it was closed, "" where it was not."""
    headers = scene.process.headers(scene.process.join)
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(scene.process.url + path, max_msg_size=0) as socket,
    ):
        try:
            for frame, as_text in [*((f, isinstance(f, str)) for f in first), *frames]:
                if as_text:
                    data = frame if isinstance(frame, str) else frame.decode("latin-1")
                    await socket.send_str(data)
                else:
                    await socket.send_bytes(frame)
            await socket.ping()
        except ConnectionError:
            pass
        await scene.others_go_on()
        while not socket.closed:
            try:
                async with asyncio.timeout(0.3):
                    message = await socket.receive()
            except TimeoutError:
                return ""
            if message.type is aiohttp.WSMsgType.CLOSE:
                return f"{message.data} {message.extra}"
        return f"{socket.close_code}"


@SETTINGS
@given(
    said_hello=st.booleans(),
    frames=st.lists(st.tuples(FRAMES, st.booleans()), min_size=1, max_size=3),
)
def test_garbage_on_the_control_connection(
    scene: Scene, said_hello: bool, frames: list[tuple[bytes, bool]]
) -> None:
    first: list[bytes | str] = [HELLO.decode()] if said_hello else []
    before = scene.run(shown(scene))
    scene.run(throw(scene, "/v1/agent", first, frames))
    assert scene.run(shown(scene)) == before
    assert scene.memory_mib() < MEMORY_MIB


LOG_HELLO = encode_text(LogHello("bystander", "agent-bystander"))  # type: ignore[arg-type]
STREAM = StreamId("1.1.0", StreamKind.STDOUT, 0)  # type: ignore[arg-type]
CHUNK = encode_chunk(Chunk(STREAM, 0, 1.0), b"bytes")
LOG_FRAMES = st.one_of(
    st.binary(max_size=200),
    mutated(CHUNK),
    mutated(LOG_HELLO.encode()),
    struct(StreamId).map(lambda stream: encode_chunk(Chunk(stream, 2**62, 1e308), b"x")),
    JSON.map(lambda tree: json.dumps(tree).encode()),
    st.sampled_from(
        [
            b"",
            b'{"type":"log_hello","x":' + b"[" * 100_000,
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x02{}",
            b"x" * (2 << 20),
        ]
    ),
)


@SETTINGS
@given(
    said_hello=st.booleans(),
    frames=st.lists(st.tuples(LOG_FRAMES, st.booleans()), min_size=1, max_size=3),
)
def test_garbage_on_the_log_connection(
    scene: Scene, said_hello: bool, frames: list[tuple[bytes, bool]]
) -> None:
    first: list[bytes | str] = [LOG_HELLO] if said_hello else []
    before = scene.run(shown(scene))
    scene.run(throw(scene, "/v1/agent/logs", first, frames))
    assert scene.run(shown(scene)) == before
    assert scene.memory_mib() < MEMORY_MIB


async def shown(scene: Scene) -> Any:
    async with user_of(scene.process) as user:
        job = await user.get(f"/v1/jobs/{scene.job}")
        return job["state"], job["attempts"]


def lines(scene: Scene, event: str, before: int) -> list[dict[str, Any]]:
    """Return the log lines since `before`. They come by a pipe and a thread, so their cause may be
    seen first."""
    deadline = time.monotonic() + DEADLINE_S
    while not (events := scene.process.events(event)[before:]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return events


@pytest.mark.parametrize(
    ("path", "first", "frame", "event"),
    [
        ("/v1/agent", HELLO.decode(), b"\x00\xff", "agent_protocol_error"),
        ("/v1/agent", "{not json", b"", "agent_protocol_error"),
        ("/v1/agent", HELLO.decode(), b"x" * (FRAME_BYTES_MAX + 1), "agent_protocol_error"),
        ("/v1/agent/logs", LOG_HELLO, b"\xff\xff\xff\xff", "log_protocol_error"),
        ("/v1/agent/logs", "{not json", b"", "log_protocol_error"),
        ("/v1/agent/logs", LOG_HELLO, b"x" * (2 << 20), "log_protocol_error"),
    ],
)
def test_it_is_closed_with_a_reason_and_reported_in_one_line(
    scene: Scene, path: str, first: str, frame: bytes, event: str
) -> None:
    before = len(scene.process.events(event))
    why = scene.run(throw(scene, path, [first], [(frame, False)] if frame else []))
    assert why, "closed"
    logged = lines(scene, event, before)
    assert len(logged) == 1, logged
    assert logged[0]["why"]
    assert logged[0]["peer"] == "127.0.0.1", "who it was is said"
    assert "Traceback" not in json.dumps(logged)


@pytest.mark.parametrize(
    ("versions", "who"),
    [
        ({"protocol_min": PROTOCOL_MAX + 1, "protocol_max": PROTOCOL_MAX + 3}, "coordinator first"),
        ({"protocol_min": 0, "protocol_max": 0}, "agent of skewed"),
    ],
)
def test_another_protocol_is_answered_with_what_to_upgrade(
    scene: Scene, versions: dict[str, Any], who: str
) -> None:
    async def story() -> Refused:
        async with connect(scene.process, "skewed") as agent:
            await agent.say(hello("skewed", **versions))
            return await agent.expect(Refused)

    before = len(scene.process.events("agent_refused"))
    refused = scene.run(story())
    (event,) = lines(scene, "agent_refused", before)
    assert (event["node"], event["peer"], event["why"]) == ("skewed", "127.0.0.1", refused.text)
    assert refused.code == "protocol"
    assert f": upgrade the {who}" in refused.text


def test_bodies_of_any_json_change_nothing(scene: Scene) -> None:
    """Jobs and cancels: read or refused, never a 500, and what is refused leaves no trace."""
    keys = st.sampled_from([*JOB, "env", "name", "retry", "stop", "roles", "grace_s", "force"])
    changed = st.dictionaries(keys, JSON | st.floats() | st.text(), max_size=3)
    path = st.sampled_from(["/v1/jobs", f"/v1/jobs/{scene.job}/cancel", "/v1/jobs/99/cancel"])
    body = st.one_of(
        JSON.map(json.dumps),
        changed.map(lambda more: json.dumps({**JOB, "nodes": 5, **more})),
        mutated(json.dumps({**JOB, "nodes": 5}).encode()),
        st.binary(max_size=60),
    ).filter(lambda said: said not in ("{}", "", b"", b"{}"))  # which are cancels

    @settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
    @given(path=path, body=body, kind=st.sampled_from(["application/json", "application/yaml"]))
    def check(path: str, body: str | bytes, kind: str) -> None:
        async def ask() -> int:
            data = body.encode() if isinstance(body, str) else body
            async with (
                aiohttp.ClientSession(headers=scene.process.headers()) as http,
                http.post(
                    scene.process.url + path, data=data, headers={"Content-Type": kind}
                ) as answer,
            ):
                said = await answer.json(content_type=None)
                if answer.status >= 400:
                    assert said["detail"]
                return answer.status

        before = scene.run(jobs(scene))
        status = scene.run(ask())
        assert status < 500
        if status >= 400:
            assert scene.run(jobs(scene)) == before
        scene.run(scene.others_go_on())

    check()


async def jobs(scene: Scene) -> list[tuple[int, str]]:
    async with user_of(scene.process) as user:
        return [(job["id"], job["state"]) for job in (await user.get("/v1/jobs"))["jobs"]]

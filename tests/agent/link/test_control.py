"""The control link against a real websocket server that misbehaves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from agent.core.inputs import CommandReceived, Input, LinkDown, LinkUp
from agent.link.control import ControlLink
from agent.link.dialer import ConnectionLostError, Dialer
from agent.link.inbox import InputQueue
from muster.daemon.errors import ConfigError
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import (
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    NodeObservations,
    Refused,
    StartTask,
    Welcome,
)
from tests.agent.coordinator import DEADLINE_S, TOKEN, Coordinator, Session

HELLO = Hello(NodeName("n1"), "id", "boot", "0", NodeObservations(Inventory("127.0.0.1", "m")))
WELCOME = Welcome(epoch=1, session=SessionId(1), heartbeat_s=5, version="0")


class Node:
    """A link and the queue it fills, without an owner who decides."""

    def __init__(self, dialer: Dialer) -> None:
        self.inbox = InputQueue()
        self.link = ControlLink(dialer, self.inbox)
        self.heard: asyncio.Queue[Input] = asyncio.Queue()
        self.listening: asyncio.Task[None] | None = None

    def wake_up(self) -> None:
        """Be the owner, who answers nothing."""
        owner = self.inbox.serve(self.heard.put_nowait, lambda: None)
        self.listening = asyncio.get_running_loop().create_task(owner)

    def fall_asleep(self) -> None:
        """Receive nothing until woken."""
        assert self.listening is not None
        self.listening.cancel()

    async def hear(self) -> Input:
        async with asyncio.timeout(DEADLINE_S):
            return await self.heard.get()


@asynccontextmanager
async def node(
    folder: Path, coordinator: Coordinator, token: str = TOKEN, ca: Path | None = None
) -> AsyncIterator[Node]:
    file = folder / "token"
    file.write_text(token)
    async with Dialer(coordinator.url, file, ca) as dialer:
        it = Node(dialer)
        loop = asyncio.get_running_loop()
        link = loop.create_task(it.link.run())
        it.wake_up()
        try:
            yield it
        finally:
            it.fall_asleep()
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)


def play(folder: Path, story: Callable[[Coordinator, Node], Awaitable[None]]) -> None:
    async def stage() -> None:
        async with Coordinator() as coordinator, node(folder, coordinator) as it:
            await story(coordinator, it)

    asyncio.run(stage())


async def greeted(coordinator: Coordinator, it: Node) -> Session:
    session = await coordinator.session()
    assert await it.hear() == LinkUp()
    it.link.send(HELLO)
    assert await session.expect(Hello) == HELLO
    await session.send(WELCOME)
    assert await it.hear() == CommandReceived(WELCOME)
    return session


def test_frames_travel_both_ways_in_order(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        for number in range(100):
            it.link.send(Heartbeat(float(number)))
        for number in range(100):
            assert await session.expect(Heartbeat) == Heartbeat(float(number))
            assert await it.hear() == CommandReceived(HeartbeatAck(float(number)))

    play(tmp_path, story)


def test_a_link_that_is_closed_is_made_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        for _ in range(3):
            session = await greeted(coordinator, it)
            await session.close()
            assert await it.hear() == LinkDown()

    play(tmp_path, story)


def test_a_link_that_is_cut_without_a_word_is_made_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        await greeted(coordinator, it)
        coordinator.drop_all()
        assert await it.hear() == LinkDown()
        await greeted(coordinator, it)

    play(tmp_path, story)


def test_an_owner_that_hangs_up_gets_a_new_link(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        it.link.close("the coordinator has been silent", refused=False)
        assert await it.hear() == LinkDown()
        await session.gone()
        await greeted(coordinator, it)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "{",
        '{"seq":"2","body":{"type":"start","task":"1.1.0"}}',
        '{"seq":2,"body":{"type":"start","task":"../../etc"}}',
        "[" * 100_000,
        "x" * (2 << 20),
    ],
    ids=["empty", "cut", "mistyped", "bad-id", "deep", "huge"],
)
def test_a_peer_that_cannot_be_understood_is_hung_up_on(tmp_path: Path, garbage: str) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        await session.send_text(garbage)
        assert await it.hear() == LinkDown()
        await greeted(coordinator, it)

    play(tmp_path, story)


def test_a_message_of_a_later_version_is_counted_and_passed_over(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        await session.send_text('{"seq":2,"body":{"type":"of_the_future","task":"../x"}}')
        start = StartTask(TaskId("1.1.0"))
        await session.send(start, seq=3)
        assert await it.hear() == CommandReceived(start)

    play(tmp_path, story)


def test_a_repeated_frame_is_dropped_and_a_gap_ends_the_link(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        start = StartTask(TaskId("1.1.0"))
        await session.send(start, seq=2)
        await session.send(StartTask(TaskId("2.1.0")), seq=2)
        await session.send(start, seq=3)
        assert await it.hear() == CommandReceived(start)
        assert await it.hear() == CommandReceived(start)
        await session.send(start, seq=5)
        assert await it.hear() == LinkDown()

    play(tmp_path, story)


def test_messages_sent_without_a_link_are_not_sent_on_the_next(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        session = await greeted(coordinator, it)
        await session.close()
        assert await it.hear() == LinkDown()
        it.link.send(Heartbeat(1.0))
        await greeted(coordinator, it)

    play(tmp_path, story)


def test_no_link_is_made_before_the_owner_has_heard_of_the_end_of_the_last(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, it: Node) -> None:
        it.fall_asleep()
        session = await coordinator.session()
        await session.close()
        with pytest.raises(TimeoutError):
            # Otherwise the owner's answers to the first would go to the second.
            await asyncio.wait_for(coordinator.session(), 0.5)
        it.wake_up()
        await coordinator.session()
        assert [await it.hear() for _ in range(3)] == [LinkUp(), LinkDown(), LinkUp()]

    play(tmp_path, story)


async def first_pause(
    folder: Path, coordinator: Coordinator, token: str = TOKEN, ca: Path | None = None
) -> dict[str, str]:
    """Return the log entry of the first connection that failed."""
    with capture_logs() as logs:
        async with node(folder, coordinator, token, ca=ca) as it:
            async with asyncio.timeout(DEADLINE_S):
                while not any(entry["event"] == "not_connected" for entry in logs):
                    if not it.heard.empty() and it.heard.get_nowait() == LinkUp():
                        session = await coordinator.session()
                        await session.send(Refused("duplicate", "n1 is taken by 10.0.0.9"))
                        it.link.close("n1 is taken by 10.0.0.9", refused=True)
                    await asyncio.sleep(0.005)
            (entry,) = [entry for entry in logs if entry["event"] == "not_connected"]
            return dict(entry)


async def test_a_wrong_token_is_reported_in_words_and_never_shown(tmp_path: Path) -> None:
    async with Coordinator() as coordinator:
        entry = await first_pause(tmp_path, coordinator, "muster_join_wrong")
        assert "put a join token" in entry["why"]
        assert "muster_join_wrong" not in str(entry)
        assert coordinator.refused == ["Bearer muster_join_wrong"]
        assert float(entry["pause_s"]) >= 30


async def test_after_a_refusal_the_next_dial_is_far_away(tmp_path: Path) -> None:
    async with Coordinator() as coordinator:
        entry = await first_pause(tmp_path, coordinator)
        assert "n1 is taken by 10.0.0.9" in entry["why"]
        assert float(entry["pause_s"]) >= 30


async def test_tls_with_a_ca_of_ones_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with Coordinator(tls=context) as coordinator:
        async with node(tmp_path, coordinator, ca=tmp_path / "ca.pem") as it:
            await greeted(coordinator, it)
        entry = await first_pause(tmp_path, coordinator)
        assert "its certificate is not trusted" in entry["why"]
        assert "tls_ca" in entry["why"]


async def test_a_ca_may_be_replaced_under_a_running_agent(tmp_path: Path) -> None:
    trusted, ca, token = trustme.CA(), tmp_path / "ca.pem", tmp_path / "token"
    trustme.CA().cert_pem.write_to_path(ca)
    token.write_text(f"{TOKEN}\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted.issue_cert("127.0.0.1").configure_cert(context)
    async with (
        Coordinator(tls=context) as coordinator,
        Dialer(coordinator.url, token, ca) as it,
    ):
        with pytest.raises(ConnectionLostError, match="its certificate is not trusted"):
            await it.dial("/v1/agent", 1024)
        ca.write_bytes(b"half of i")
        with pytest.raises(ConnectionLostError, match="no certificate in it can be read"):
            await it.dial("/v1/agent", 1024)
        trusted.cert_pem.write_to_path(ca)
        await (await it.dial("/v1/agent", 1024)).close()


async def test_a_certificate_of_another_name_is_not_taken_for_one_of_another_ca(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.test").configure_cert(context)
    async with Coordinator(tls=context) as coordinator:
        entry = await first_pause(tmp_path, coordinator, ca=tmp_path / "ca.pem")
        assert "certificate is not valid for '127.0.0.1'" in entry["why"]
        assert "subjectAltName" in entry["why"]
        assert "tls_ca" not in entry["why"]


@pytest.mark.parametrize("content", ["", "two words", "\x00"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigError, match="does not hold one token"):
        Dialer("http://127.0.0.1:1", file, None)

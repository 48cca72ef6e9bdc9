"""Reading logs: history, tail, what comes live, and how a stream ends."""

import asyncio
import base64
import json
import math
from pathlib import Path

import aiohttp
import pytest

from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.link.log_channel import TaskLogsEnd
from muster.protocol.states import TaskState
from orchestrator.api.log_stream import waited_s
from tests.orchestrator.api.log_scene import log_scene, texts
from tests.orchestrator.fake_agent import prepared
from tests.orchestrator.process import CoordinatorProcess


async def test_history_is_in_the_order_of_time_and_can_be_chosen_from(
    coordinator: CoordinatorProcess,
) -> None:
    async with log_scene(coordinator) as scene:
        await scene.write(0, b"third\n", 3.0)
        await scene.write(1, b"first\n", 1.0)
        await scene.write(1, b"oops\n", 2.0, "stderr")
        await scene.write(0, b"made ready\n", 0.5, "setup")
        logs, job = scene.user.logs, scene.job
        everything = await logs(job)
        assert texts(everything) == ["made ready\n", "first\n", "oops\n", "third\n"]
        assert everything[-1]["end"] is False
        assert everything[-1]["cursor"] == everything[-2]["cursor"]
        assert texts(await logs(job, "rank=1")) == ["first\n", "oops\n"]
        assert texts(await logs(job, "node=n1")) == ["made ready\n", "third\n"]
        assert texts(await logs(job, "stream=stderr,setup")) == ["made ready\n", "oops\n"]
        assert texts(await logs(job, "attempt=2")) == []
        assert texts(await logs(job, "tail=2")) == ["oops\n", "third\n"]
        assert texts(await logs(job, "tail=0")) == []
        for at, line in enumerate(everything[:-1]):
            rest = await logs(job, f"cursor={line['cursor']}")
            assert texts(rest) == texts(everything[at + 1 :])
        async with scene.user.http.get(f"/v1/jobs/{job}/logs?format=text&node=n2") as answer:
            assert await answer.text() == "first\noops\n"
        await scene.finish()


async def test_a_tail_of_nothing_says_where_what_follows_begins(
    coordinator: CoordinatorProcess,
) -> None:
    async with log_scene(coordinator) as scene:
        (trailer,) = await scene.user.logs(scene.job, "tail=1&rank=1")
        await scene.write(0, b"of another\n", 1.0)
        await scene.write(1, b"first\nsecond\n", 2.0)
        rest = await scene.user.logs(scene.job, f"rank=1&cursor={trailer['cursor']}")
        assert texts(rest) == ["first\nsecond\n"]
        await scene.finish()


async def test_bytes_that_are_no_text_arrive_as_they_were(coordinator: CoordinatorProcess) -> None:
    async with log_scene(coordinator) as scene:
        await scene.write(0, b"\xff\x00\xfe", 1.0)
        (record, _) = await scene.user.logs(scene.job)
        assert "data" not in record
        assert base64.b64decode(record["data_b64"]) == b"\xff\x00\xfe"
        assert (record["offset"], record["len"], record["ts"]) == (0, 3, "1970-01-01T00:00:01Z")
        await scene.finish()


async def test_a_follower_sees_what_comes_and_the_end_only_when_all_is_stored(
    coordinator: CoordinatorProcess,
) -> None:
    async with log_scene(coordinator) as scene:
        await scene.write(0, b"before\n", 5.0)
        path = f"/v1/jobs/{scene.job}/logs?follow=true"
        async with scene.user.http.get(path) as answer:
            assert texts([json.loads(await answer.content.readline())]) == ["before\n"]
            await scene.write(1, b"while\n", 1.0)
            assert texts([json.loads(await answer.content.readline())]) == ["while\n"]
            await scene.finish()
            await scene.user.ended(scene.job)
            await scene.write(0, b"after its end\n", 6.0)
            assert texts([json.loads(await answer.content.readline())]) == ["after its end\n"]
            await scene.deliver(0)
            await scene.deliver(1)
            trailer = json.loads(await answer.content.readline())
            assert (trailer["end"], trailer["state"], trailer["exit_code"]) == (
                True,
                "SUCCEEDED",
                0,
            )
            assert "reason" not in trailer
            assert await answer.content.read() == b""


async def test_a_node_that_delivers_nothing_is_not_waited_for_for_ever(
    coordinator: CoordinatorProcess,
) -> None:
    async with log_scene(coordinator) as scene:
        await scene.write(0, b"x\n", 5.0)
        await scene.finish()
        await scene.deliver(0)
        *records, trailer = await scene.user.logs(scene.job, "follow=1")
        assert texts(records) == ["x\n"]
        assert trailer["end"] is True
        assert trailer["reason"] == "not all logs were delivered by n2"


@pytest.mark.parametrize(
    ("wall", "mono", "grew_at", "waited"),
    [
        pytest.param(1003.0, 53.0, -math.inf, 3.0, id="both clocks agree"),
        pytest.param(1003.0, 53.0, 52.0, 1.0, id="bytes came after the end"),
        pytest.param(9000.0, 50.0, -math.inf, 8000.0, id="it ended long before this reader came"),
        pytest.param(-85400.0, 55.0, -math.inf, 5.0, id="the wall clock was set back by a day"),
    ],
)
def test_the_wait_for_logs_of_an_ended_job(
    wall: float, mono: float, grew_at: float, waited: float
) -> None:
    assert waited_s(Instant(mono, wall), 1000.0, 50.0, grew_at) == waited


async def test_a_node_that_never_had_the_task_has_no_logs_to_deliver(
    coordinator: CoordinatorProcess,
) -> None:
    """Its job was cancelled before the node received it."""
    async with log_scene(coordinator) as scene:
        await scene.finish()
        one, two = scene.agents
        job = await scene.user.submit(nodes=2)
        task = await one.prepare()
        await two.expect(PrepareTask)
        await scene.user.cancel(job)
        await one.report(task, TaskState.CLEANED, prepared=prepared())
        await two.report(TaskId(f"{job}.1.1"), TaskState.CLEANED)
        await scene.user.ended(job)
        await scene.links[0].say(TaskLogsEnd(task, 0))
        *_, trailer = await scene.user.logs(job, "follow=1")
        assert trailer["end"] is True
        assert "reason" not in trailer


@pytest.mark.parametrize("form", ["ndjson", "text"])
async def test_a_restart_never_looks_like_the_end(tmp_path: Path, form: str) -> None:
    with CoordinatorProcess(tmp_path).start() as coordinator:
        async with log_scene(coordinator) as scene:
            await scene.write(0, b"x\n", 5.0)
            path = f"/v1/jobs/{scene.job}/logs?follow=1&format={form}"
            async with scene.user.http.get(path) as answer:
                first = await answer.content.readline()
                stopping = asyncio.create_task(asyncio.to_thread(coordinator.terminate))
                if form == "text":
                    assert first == b"x\n"
                    with pytest.raises(aiohttp.ClientPayloadError):
                        await answer.content.read()
                else:
                    trailer = json.loads(await answer.content.readline())
                    assert trailer["end"] is False
                    cursor = trailer["cursor"]
                    assert trailer["reason"] == f"server restarting, resume at cursor {cursor}"
                    assert trailer["cursor"] == json.loads(first)["cursor"]
                    assert await answer.content.read() == b""
            assert await stopping == 0

"""The control connection: who is let in, what ends it, and that its end is noticed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.codec import FRAME_BYTES_MAX, ReportFrame, encode
from muster.protocol.link.control_channel import (
    Heartbeat,
    HeartbeatAck,
    Refusal,
    Refused,
    TaskReport,
)
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, connect, hello
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

POLICY_VIOLATION = 1008


async def closed(agent: FakeAgent) -> tuple[int | None, str]:
    """Code and reason with which the coordinator ends the connection, whatever it says before."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            message = await agent.socket.receive()
            if message.type is aiohttp.WSMsgType.CLOSE:
                return message.data, message.extra or ""
            assert message.type is aiohttp.WSMsgType.TEXT, message


async def link_of(user: User, node: str) -> str | None:
    nodes = (await user.get("/v1/nodes"))["nodes"]
    return next((n["link"] for n in nodes if n["name"] == node), None)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so; the deadline fails the test."""
    async with asyncio.timeout(DEADLINE_S):
        while not await check():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


async def test_hello_is_welcomed_and_a_heartbeat_is_answered(
    coordinator: CoordinatorProcess,
) -> None:
    async with connect(coordinator, "a1") as agent, user_of(coordinator) as user:
        welcome = await agent.hello()
        assert (welcome.epoch, welcome.heartbeat_s) == (1, 20.0)
        await agent.say(Heartbeat(12.5))
        assert await agent.hear() == HeartbeatAck(12.5)
        assert await link_of(user, "a1") == "connected"


def test_the_end_of_a_connection_is_noticed_at_once(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        async with user_of(coordinator) as user:
            async with connect(coordinator, "a2") as agent:
                await agent.hello()

            async def gone() -> bool:
                return await link_of(user, "a2") == "suspect"

            await until(gone)
            async with connect(coordinator, "a2") as agent:
                await agent.hello()
                assert await link_of(user, "a2") == "connected"

    asyncio.run(main())


async def test_a_new_connection_of_an_agent_ends_its_old_one(
    coordinator: CoordinatorProcess,
) -> None:
    async with (
        connect(coordinator, "a3") as old,
        connect(coordinator, "a3") as new,
        user_of(coordinator) as user,
    ):
        await old.hello()
        await new.hello()
        assert (await closed(old))[1] == "the agent has connected again"
        await new.say(Heartbeat(1.0))
        assert await new.hear() == HeartbeatAck(1.0)
        assert await link_of(user, "a3") == "connected"


async def test_a_second_agent_of_the_same_name_learns_why_not(
    coordinator: CoordinatorProcess,
) -> None:
    async with connect(coordinator, "a4") as one, connect(coordinator, "a4") as two:
        await one.hello()
        await two.say(hello("a4", agent_id="another"))
        refused = await two.expect(Refused)
        assert refused.code == "duplicate_name"
        assert (await closed(two))[1] == "duplicate_name"


def test_a_second_agent_of_one_machine_learns_why_not(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        async with connect(coordinator, "a5") as one, connect(coordinator, "b5") as two:
            await one.hello()
            await two.say(hello("b5", boot_id="boot-a5"))
            refused = await two.expect(Refused)
            assert "a5 at 127.0.0.1 and b5 at 127.0.0.1 are agents of one machine" in refused.text
            assert (await closed(two))[1] == "second_agent"
        async with user_of(coordinator) as user:

            async def gone() -> bool:
                return await link_of(user, "a5") == "suspect"

            await until(gone)
        async with connect(coordinator, "b5") as two:
            await two.hello(boot_id="boot-a5")

    asyncio.run(main())


async def says_rubbish(agent: FakeAgent) -> None:
    await agent.socket.send_str("{not json")


async def says_bytes(agent: FakeAgent) -> None:
    await agent.socket.send_bytes(encode(ReportFrame(1, hello(agent.name))))


async def says_no_hello(agent: FakeAgent) -> None:
    await agent.say(Heartbeat(1.0))


async def says_hello_twice(agent: FakeAgent) -> None:
    await agent.hello()
    await agent.say(hello(agent.name))


async def leaves_a_gap(agent: FakeAgent) -> None:
    await agent.hello()
    agent.link.next_seq()
    await agent.say(Heartbeat(1.0))


async def says_an_unknown_tag_first(agent: FakeAgent) -> None:
    await agent.socket.send_str('{"seq":1,"body":{"type":"no_such_message"}}')


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (says_rubbish, "not a message of this protocol"),
        (says_bytes, "messages are text frames"),
        (says_no_hello, "the first message is not a hello"),
        (says_hello_twice, "a second hello"),
        (leaves_a_gap, "1 frames are missing"),
        (says_an_unknown_tag_first, "which this version does not support"),
    ],
)
async def test_an_invalid_message_ends_the_connection_with_the_reason(
    coordinator: CoordinatorProcess, behave: Callable[[FakeAgent], Awaitable[None]], reason: str
) -> None:
    async with connect(coordinator, f"b-{behave.__name__.replace('_', '-')}") as agent:
        await behave(agent)
        code, why = await closed(agent)
        assert code == POLICY_VIOLATION
        assert reason in why


async def test_a_message_of_a_later_version_is_counted_and_passed_over(
    coordinator: CoordinatorProcess,
) -> None:
    async with connect(coordinator, "of-the-future") as agent:
        await agent.hello()
        for _ in range(3):
            seq = agent.link.next_seq()
            raw = f'{{"seq":{seq},"body":{{"type":"of_the_future","x":[1]}}}}'
            await agent.socket.send_str(raw)
        await agent.say(Heartbeat(1.5))
        assert (await agent.expect(HeartbeatAck)).sent_s == 1.5


async def test_a_frame_over_the_limit_ends_the_connection(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "c1") as agent:
        await agent.hello()
        await agent.socket.send_str("x" * (FRAME_BYTES_MAX + 1))
        async with asyncio.timeout(DEADLINE_S):
            message = await agent.socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message


async def test_a_repeated_frame_is_dropped(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "c2") as agent:
        await agent.hello()
        again = encode(ReportFrame(1, hello("c2"))).decode()
        await agent.socket.send_str(again)
        await agent.say(Heartbeat(2.0))
        assert await agent.hear() == HeartbeatAck(2.0)


async def test_a_connection_without_a_hello_is_closed(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "c3") as agent:
        code, why = await closed(agent)
        assert (code, why) == (POLICY_VIOLATION, "no hello within 5 s")


async def test_a_stranger_with_an_impossible_name_is_refused(
    coordinator: CoordinatorProcess,
) -> None:
    fields: dict[str, Any] = {}
    async with connect(coordinator, "evil\n127.0.0.1 bank.example") as agent:
        await agent.say(hello(agent.name, **fields))
        assert (await agent.expect(Refused)).code == "bad_name"


async def test_a_node_that_holds_much_is_let_in(coordinator: CoordinatorProcess) -> None:
    """A node refused for the size of its hello could never come back: it would send the same
    again."""
    async with connect(coordinator, "holds-much") as agent:
        why = Refusal("setup_failed", "x" * 2000)
        tasks = tuple(TaskReport(TaskId(f"{n}.1.0"), TaskState.CLEANED, why) for n in range(1, 100))
        await agent.hello(tasks=tasks)

"""The peers that a node of a gang probes, and its report when one does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.peers import MISSED, PeerAnswers, peers_of
from agent.core.shim_protocol import ShimPhase
from agent.gang.peer_pings import PeerPings
from muster.daemon.task_owner import TaskOwner
from muster.protocol.link.control_channel import StartTask
from tests.agent.core.playbook import ARRANGE, TASK, Agent, reports

GANG = msgspec.structs.replace(
    ARRANGE, hosts=tuple((f"n{rank}", f"10.0.0.{rank}") for rank in range(5))
)


@pytest.mark.parametrize(
    ("node", "watched"),
    [
        ("n0", ("10.0.0.4", "10.0.0.1")),
        ("n1", ("10.0.0.0", "10.0.0.2")),
        ("n2", ("10.0.0.1", "10.0.0.3", "10.0.0.0")),
        ("n4", ("10.0.0.3", "10.0.0.0")),
        ("stranger", ()),
    ],
)
def test_the_ring_and_the_first(node: str, watched: tuple[str, ...]) -> None:
    assert peers_of(GANG, node) == watched


def test_a_node_has_one_address_however_many_names() -> None:
    hosts = (("n0", "10.0.0.1"), ("alias", "10.0.0.1"), ("n1", "10.0.0.2"))
    assert peers_of(msgspec.structs.replace(ARRANGE, hosts=hosts), "n1") == ("10.0.0.1",)


def test_a_peer_that_never_answered_is_not_reported() -> None:
    seen = PeerAnswers()
    course = [*[False] * 10 * MISSED, True, *[False] * MISSED, True]
    said = []
    for answered in course:
        seen.heard("a", answered=answered)
        said.append(seen.silent)
    assert [at for at, silent in enumerate(said) if silent] == [len(course) - 2]


def test_no_false_alarm_in_an_hour_of_loss_and_stalls() -> None:
    """Lose one packet in a hundred in either direction, and stall half a second with some chance in
    each second. The kernel repeats the probe after a second; an answer counts within two."""
    for seed in range(200):
        chance, seen = random.Random(seed), PeerAnswers()
        for _ in range(1200):
            tries = [chance.random() < 0.99 and chance.random() < 0.99 for _ in range(2)]
            stall = 0.5 if chance.random() < 0.05 else 0.0
            arrives = next((n * 1.0 + stall for n, good in enumerate(tries) if good), None)
            seen.heard("a", answered=arrives is not None and arrives < 2.0)
            assert seen.silent == (), seed


def silent(*addresses: str) -> s.TaskObserved:
    return s.TaskObserved(TASK, s.TaskChanges(silent=addresses))


def test_it_is_watched_from_the_start_to_the_end_and_reported_in_its_report() -> None:
    agent = Agent()
    agent.at_gate()
    agent.hear(GANG)
    agent.turn(s.NetworkArranged(TASK))
    started = agent.hear(StartTask(TASK))
    assert a.WatchPeers(TASK, GANG) in started
    agent.shim(ShimPhase.RUNNING, running_s=0.0)
    (said,) = reports(agent.turn(silent("10.0.0.4")))
    assert said.observed.silent == ("10.0.0.4",)
    (again,) = reports(agent.turn(silent()))
    assert again.observed.silent == ()


def test_changes_are_posted_and_the_end_ends_it() -> None:
    async def course() -> list[s.Input]:
        heard: list[s.Input] = []
        more, alive = asyncio.Event(), {"10.0.0.0": True, "10.0.0.2": True}
        asked = asyncio.Event()

        def post(received: s.Input) -> None:
            heard.append(received)
            more.set()

        async def ask(address: str) -> bool | None:
            asked.set()
            return alive[address]

        async with TaskOwner("test") as owner:
            watch = PeerPings("n1", post, owner, ask, period_s=0.001)
            watch.watch(TASK, GANG)
            await asked.wait()
            await asyncio.sleep(0.01)
            alive["10.0.0.2"] = False
            await more.wait()
            more.clear()
            alive["10.0.0.2"] = True
            await more.wait()
            watch.end(TASK)
            await owner.close()
        return heard

    reported = run(course())
    assert reported == [silent("10.0.0.2"), silent()]


def test_commands_sent_with_the_watch_go_first() -> None:
    async def course() -> list[s.Input]:
        order: list[str] = []
        asked = asyncio.Event()

        async def ask(address: str) -> bool | None:
            order.append(address)
            asked.set()
            return True

        async with TaskOwner("test") as owner:
            PeerPings("n1", lambda _: None, owner, ask).watch(TASK, GANG)
            asyncio.get_running_loop().call_soon(order.append, "start")
            await asked.wait()
            await owner.close()
        assert order[0] == "start"
        return []

    run(course())


def run(course: Coroutine[Any, Any, list[s.Input]]) -> list[s.Input]:
    async def bounded() -> list[s.Input]:
        async with asyncio.timeout(180):
            return await course

    return asyncio.run(bounded())

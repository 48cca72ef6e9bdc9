"""Explanations leave the loop to others between their steps, and are of one state each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from muster.http.explanation import Explanation
from muster.protocol.ids import JobId
from orchestrator.api.http.explanations import BEGINNINGS, WAITING_MAX, Explanations
from orchestrator.api.http.problems import ApiError
from orchestrator.core.views.explain import NODES_A_STEP, Steps, explain, explain_steps
from tests.orchestrator.core.playbook import Cluster, spec


def waiting() -> Cluster:
    """A busy cluster of 300 nodes with two jobs that wait."""
    cluster = Cluster()
    cluster.join(*(f"gpu-{number:03d}" for number in range(300)))
    for nodes in (300, 200, 100):
        cluster.submit(spec(nodes=nodes, time_limit_s=600.0))
    return cluster


CLUSTER = waiting()
STATE = CLUSTER.state
WANTED = explain(STATE, CLUSTER.job(3), CLUSTER.now)


@dataclass
class Owner:
    """The owner of a state; its revision stands for the state."""

    revision: int = 0

    async def yield_to_scheduling(self) -> None:
        return


@dataclass
class Loop:
    """Counts the turns of the event loop."""

    turns: int = 0
    ends: bool = False

    async def run(self) -> None:
        while not self.ends:
            self.turns += 1
            await asyncio.sleep(0)


def begun(before_each: Callable[[], None]) -> Steps[Explanation]:
    steps = explain_steps(STATE, CLUSTER.job(3), CLUSTER.now)
    while True:
        before_each()
        try:
            next(steps)
        except StopIteration as done:
            found: Explanation = done.value
            return found
        yield


def test_a_step_looks_at_few_nodes() -> None:
    steps = sum(1 for _ in explain_steps(STATE, CLUSTER.job(3), CLUSTER.now))
    # The summary, the chances by nodes and by the queue, all nodes, and what follows.
    assert steps >= 300 // NODES_A_STEP + 5


async def test_the_loop_turns_between_two_steps() -> None:
    made, loop = Explanations(Owner()), Loop()
    at: list[int] = []

    async def begin() -> Steps[Explanation]:
        return begun(lambda: at.append(loop.turns))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        both = [tasks.create_task(made.make(user, begin)) for user in ("ann", "bob")]
        assert [await it for it in both] == [WANTED, WANTED]
        loop.ends = True
    assert len(at) >= 20
    # No steps of two explanations are in the same turn, except an end and a beginning.
    assert len(set(at)) >= len(at) - 1, at


async def test_an_explanation_begins_again_if_the_state_changes() -> None:
    owner = Owner()
    made = Explanations(owner)
    numbers: list[int] = []

    def changes(until: int) -> Iterator[None]:
        for number in range(1_000):
            if len(numbers) <= until and number == 2:
                owner.revision += 1
            yield

    def begin_until(until: int) -> Callable[[], asyncio.Future[Steps[Explanation]]]:
        def begin() -> asyncio.Future[Steps[Explanation]]:
            numbers.append(1)
            steps = changes(until)
            begins: asyncio.Future[Steps[Explanation]] = asyncio.get_running_loop().create_future()
            begins.set_result(begun(lambda: next(steps)))
            return begins

        return begin

    assert await made.make("ann", begin_until(2)) == WANTED
    assert len(numbers) == 3
    # A state that changes all the time delays no answer for ever.
    numbers.clear()
    assert await made.make("ann", begin_until(99)) == WANTED
    assert len(numbers) == BEGINNINGS


async def test_a_user_waits_for_a_bounded_number() -> None:
    made, goes_on = Explanations(Owner()), asyncio.Event()

    async def begin() -> Steps[Explanation]:
        await goes_on.wait()
        return explain_steps(STATE, CLUSTER.job(3), CLUSTER.now)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(made.make("ann", begin)) for _ in range(WAITING_MAX + 1)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await made.make("ann", begin)
        assert (refused.value.status, refused.value.code) == (429, "too_many_explanations")
        # A user who goes away leaves the turn to the next, and other users have turns of their own.
        asked.pop(3).cancel()
        asked.append(tasks.create_task(made.make("bob", begin)))
        goes_on.set()
        assert [await it for it in asked] == [WANTED] * len(asked)
    assert await made.make("ann", begin) == WANTED


async def test_one_that_fails_leaves_the_turn_to_the_next() -> None:
    made = Explanations(Owner())

    async def fails() -> Steps[Explanation]:
        raise ApiError(404, "unknown_job", f"there is no job {JobId(9)}", "")

    async def begin() -> Steps[Explanation]:
        return explain_steps(STATE, CLUSTER.job(3), CLUSTER.now)

    for _ in range(2):
        with pytest.raises(ApiError):
            await made.make("ann", fails)
    assert await made.make("ann", begin) == WANTED

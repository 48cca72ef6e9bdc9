"""Elastic gangs that live by vouches: no member outlives what the coordinator counts on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from agent.core import task as agent_task
from agent.core import vouching
from agent.core.state import HeldTask
from orchestrator.core.model import leases
from orchestrator.core.model.state import Attempt, Task
from tests.agent.vouching.elastic import ElasticWorld
from tests.agent.vouching.world import COORDINATOR, LEASE_S, Violation

SEEDS = range(24)


def lived(seed: int) -> Counter[str]:
    """A gang with every kind of trouble, whose attempt ends at some time."""
    world = ElasticWorld(seed, 1 + seed % 3)
    rng = random.Random(f"elastic {seed}")
    world.disk_s = rng.choice((2.0, 90.0))

    def trouble() -> None:
        for_s = rng.choice((5.0, 40.0, LEASE_S, 3 * LEASE_S)) * rng.uniform(0.5, 1.5)
        size = len(world.machines)
        ends = [COORDINATOR, *range(size)]
        every = [(one, two) for one in ends for two in ends if one != two]
        machine = rng.choice(world.machines)
        own = [link for link in every if machine.rank in link]
        match rng.randrange(10):
            case 0 | 1 if size < 6 and not world.stopping:
                world.join()
            case 2 if machine.rank:
                world.lose(machine.rank, own, for_s)
            case 3:  # one member from the coordinator
                world.cut([link for link in own if COORDINATOR in link], for_s)
            case 4:
                world.cut([link for link in own if link[0] == machine.rank], for_s)
            case 5:
                world.cut([link for link in every if COORDINATOR in link], for_s)
            case 6:
                world.cut([link for link in every if rng.random() < 0.3], for_s)
            case 7 if machine.rank:
                world.leave(machine.rank)
            case 8 if rng.random() < 0.4:
                world.reboot(machine, min(for_s, 120.0))
            case _:
                if rng.random() < 0.5:  # it comes back, and not to the coordinator
                    world.cut([link for link in own if COORDINATOR in link], for_s)
                world.crash(machine, min(for_s, rng.uniform(0.1, 60.0)))
        world.at(rng.expovariate(1 / 12.0), trouble)

    def end() -> None:
        world.stopping = True

    world.at(rng.uniform(0.0, 20.0), trouble)
    world.at(rng.uniform(20.0, 5 * LEASE_S), end)
    world.run(12 * LEASE_S)
    return world.met


def test_nobody_runs_who_counts_as_over() -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += lived(seed)
    wanted = ("judged", "judged_left", "joined", "left", "vouch", "muted")
    assert min(met[it] for it in wanted) > 20, met


def away(world: ElasticWorld) -> None:
    size = len(world.machines)
    links = [(COORDINATOR, rank) for rank in range(size)]
    world.cut([*links, *((two, one) for one, two in links)], 1e9)


def test_one_that_has_joined_and_the_others_outlive_the_coordinator() -> None:
    world = ElasticWorld(1)
    world.at(10.0, world.join)
    world.at(20.0, partial(away, world))
    world.run(30 * LEASE_S)
    assert [it.runs for it in world.machines] == [True] * 3


def test_those_that_stay_outlive_the_coordinator_after_others_left() -> None:
    world = ElasticWorld(2, 3)
    world.at(10.0, partial(world.leave, 1))
    world.at(20.0, partial(world.leave, 2))
    world.at(30.0, partial(away, world))
    world.run(30 * LEASE_S)
    assert [it.runs for it in world.machines] == [True, False, False]


def test_a_single_member_that_waits_for_others_outlives_the_coordinator() -> None:
    world = ElasticWorld(3, 1)
    world.at(10.0, partial(away, world))
    world.run(30 * LEASE_S)
    assert world.machines[0].runs


# --- planted bugs ------------------------------------------------------------------------------


def counts_members_known_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop counts also for those that have never confirmed terms with its task."""
    real = leases._mute_for

    def mute_for(attempt: Attempt, task: Task, other: Task) -> float | None:
        since, other.member_from = other.member_from, 1
        found = real(attempt, task, other)
        other.member_from = since
        return found

    monkeypatch.setattr(leases, "_mute_for", mute_for)


def counts_terms_that_are_not_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(held: HeldTask) -> int:
        return 0 if held.terms is None else held.terms.number

    monkeypatch.setattr(agent_task, "_terms", newest)


def counts_those_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that left counts for those that may have terms without it."""
    real = leases._mute_for

    def mute_for(attempt: Attempt, task: Task, other: Task) -> float | None:
        until, other.member_until = other.member_until, None
        found = real(attempt, task, other)
        other.member_until = until
        return found

    monkeypatch.setattr(leases, "_mute_for", mute_for)


def vouches_for_those_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        vouching, "_vouches", lambda held, _: held.stop is None and not held.forgotten
    )


BUGS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    counts_members_known_to_some: 16,
    counts_terms_that_are_not_on_disk: 75,
    counts_those_that_left: 10,
    vouches_for_those_that_left: 64,
}
"""Each with a seed that finds it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(BUGS[bug])
    bug(monkeypatch)
    with pytest.raises(Violation):
        lived(BUGS[bug])

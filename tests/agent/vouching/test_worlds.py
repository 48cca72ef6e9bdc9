"""Gangs that live by vouches: no member outlives what the coordinator counts on, in any world."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from agent.core import apply as agent_apply
from agent.core import vouching
from agent.core.record import TaskRecord
from agent.core.state import HeldTask
from tests.agent.vouching import world as worlds
from tests.agent.vouching.world import COORDINATOR, LEASE_S, Violation, World, margin_s

SEEDS = range(40)


def lived(seed: int, margin: Callable[[float], float] = margin_s) -> Counter[str]:
    """A gang with every kind of trouble, whose attempt ends at some time."""
    size = 2 + seed % 3
    world = World(seed, size, margin)
    rng = random.Random(f"faults {seed}")
    ends = [COORDINATOR, *range(size)]
    every = [(one, two) for one in ends for two in ends if one != two]

    def trouble() -> None:
        for_s = rng.choice((5.0, 40.0, LEASE_S, 3 * LEASE_S)) * rng.uniform(0.5, 1.5)
        machine = rng.choice(world.machines)
        match rng.randrange(7):
            case 0:
                world.cut([link for link in every if rng.random() < 0.3], for_s)
            case 1:  # one member from all, or one direction of it
                both = [link for link in every if machine.rank in link]
                one_way = [link for link in both if link[0] == machine.rank]
                world.cut(rng.choice((both, one_way)), for_s)
            case 2:  # the coordinator from all, or from some
                some = {end for end in ends[1:] if rng.random() < 0.7}
                world.cut([x for x in every if COORDINATOR in x and some & set(x)], for_s)
            case 3:
                if rng.random() < 0.5:  # it comes back, and not to the coordinator
                    world.cut([x for x in every if set(x) == {COORDINATOR, machine.rank}], for_s)
                world.crash(machine, min(for_s, rng.uniform(0.1, 60.0)))
            case 4 if rng.random() < 0.4:
                world.reboot(machine, min(for_s, 120.0))
            case _:
                world.replay()
        world.at(rng.expovariate(1 / 12.0), trouble)

    def end() -> None:
        world.stopping = True

    world.at(rng.uniform(0.0, 20.0), trouble)
    world.at(rng.uniform(20.0, 4 * LEASE_S), end)
    world.run(12 * LEASE_S)
    return world.met


def test_nobody_runs_who_counts_as_over() -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += lived(seed)
    assert min(met["judged"], met["vouch"], met["muted"]) > 50, met


# --- the rows of the table ---------------------------------------------------------------------


def links(world: World, one: Iterable[int], two: Iterable[int]) -> list[tuple[int, int]]:
    pairs = [(a, b) for a in one for b in two]
    return [*pairs, *((b, a) for a, b in pairs)]


def running(world: World) -> list[bool]:
    return [machine.runs for machine in world.machines]


def test_a_gang_outlives_a_coordinator_that_is_away_for_thirty_leases() -> None:
    world = World(1)
    world.cut(links(world, [COORDINATOR], range(3)), 1e9)
    world.run(30 * LEASE_S)
    assert all(running(world))


def test_agents_that_restart_one_after_the_other_do_not_end_it() -> None:
    world = World(2)
    world.cut(links(world, [COORDINATOR], range(3)), 1e9)
    for number in range(12):
        machine = world.machines[number % 3]
        world.at(number * LEASE_S / 2, partial(world.crash, machine, LEASE_S / 4))
    world.run(8 * LEASE_S)
    assert all(running(world))


def test_a_member_that_only_the_coordinator_misses_runs_on() -> None:
    world = World(3)
    world.cut(links(world, [COORDINATOR], [0]), 1e9)
    world.run(10 * LEASE_S)
    assert all(running(world))


def test_a_member_cut_off_from_all_ends_itself_and_no_other() -> None:
    world = World(4)
    world.cut(links(world, [0], [COORDINATOR, 1, 2]), 1e9)
    world.run(LEASE_S * 1.1 + 15)
    assert running(world) == [False, True, True]


@pytest.mark.parametrize("way", ["to", "from"])
def test_a_link_cut_in_one_direction_counts_as_cut(way: str) -> None:
    world = World(5)
    cut = links(world, [COORDINATOR], range(3))
    world.cut([*cut, (0, 1) if way == "to" else (1, 0)], 1e9)
    world.run(LEASE_S * 1.1 + 15)
    assert running(world) == [False, False, True]


def test_a_gang_that_is_split_and_seen_by_nobody_ends() -> None:
    world = World(6)
    world.cut([*links(world, [COORDINATOR], range(3)), *links(world, [0], [1, 2])], 1e9)
    world.run(LEASE_S * 1.1 + 15)
    assert running(world) == [False, False, False]


def test_a_member_whose_agent_is_away_for_longer_than_a_lease_ends() -> None:
    world = World(7)
    world.crash(world.machines[0], 1e9)
    world.run(LEASE_S * 1.1 + 15)
    assert running(world) == [False, True, True]


# --- planted bugs ------------------------------------------------------------------------------


def believes_old_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskRecord, "after", lambda self, _: self)


def believes_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote counts from its end, and any number of old answers make one."""
    real: Any = vouching.is_round_due

    def due(held: HeldTask, now: float) -> bool:
        return bool(real(held, now)) if not held.awaited else held.asked_at is None

    monkeypatch.setattr("agent.core.decide.is_round_due", due)

    apply_held: Any = agent_apply._apply_held

    def applied(held: HeldTask, fact: Any) -> None:
        apply_held(held, fact)
        if type(fact).__name__ == "MemberVouched" and not held.awaited:
            assert held.asked_at is not None
            held.voted_at = held.asked_at + LEASE_S / 2

    monkeypatch.setattr(agent_apply, "_apply_held", applied)


def vouches_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "_vouches", lambda held, other: other in held.peers)


def forgets_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted agent has forgotten the stop that it confirmed."""
    real: Any = TaskRecord.after

    def after(self: TaskRecord, boot_id: str) -> TaskRecord:
        kept: TaskRecord = real(self, boot_id)
        return TaskRecord(kept.boot_id, kept.cluster, kept.plan, kept.terms)

    monkeypatch.setattr(TaskRecord, "after", after)


def forgets_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted agent takes the task for one without a lease, and says so to the shim."""
    real: Any = HeldTask.lease_until

    def until(self: HeldTask, acknowledged_at: float | None) -> float:
        end: float = real(self, acknowledged_at)
        return end if self.prepare is not None or acknowledged_at is None else end + 9 * LEASE_S

    monkeypatch.setattr(HeldTask, "lease_until", until)


def asks_without_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of an earlier round counts for the current one: a replay does."""
    monkeypatch.setattr(vouching, "round_name", lambda *_: "the same")
    monkeypatch.setattr("agent.core.decide.round_name", lambda *_: "the same")


BUGS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    believes_old_boots: 0,
    believes_for_too_long: 9,
    vouches_after_a_stop: 9,
    forgets_stops: 9,
    forgets_the_lease: 0,
    asks_without_rounds: 120,
}
"""Each with the first seed that finds it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(BUGS[bug])
    bug(monkeypatch)
    with pytest.raises(Violation):
        lived(BUGS[bug])


def test_a_margin_that_is_too_small_is_found() -> None:
    with pytest.raises(Violation):
        lived(9, lambda _: worlds.KILL_S / 2)

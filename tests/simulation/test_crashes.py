"""Processes are killed before and after everything that they write, send, take and decide."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pytest

from agent.core import facts as agent_facts
from muster.protocol.link import control_channel
from orchestrator.core.facts import jobs
from orchestrator.core.facts.cluster import InputFailed
from orchestrator.core.facts.restored import JournalRestored
from tests.simulation.cluster import Cluster
from tests.simulation.crashes import MOOT, Crashes, Deed, Point, When, Who, every, members

# The courses take half a minute of CPU time, in whichever test comes first.
pytestmark = pytest.mark.timeout(300)
VOUCHING: Final = (-476, -484, -455, -430)
ELASTIC: Final = -638
COURSES: Final = (*range(1000, 1060), 1075, 1081, *range(-6, 0), -45, -56, VOUCHING[0], ELASTIC)
TROUBLE_S: Final = 300.0
PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class Course:
    """A run in which nothing is killed: its length, and the points it passes."""

    seed: int
    steps: int
    passed: dict[Point, int]


@functools.cache
def course(seed: int) -> Course:
    crashes = Crashes()
    world = Cluster(seed, trouble_s=TROUBLE_S, crashes=crashes).run()
    return Course(seed, world.steps, dict(crashes.passed))


def courses() -> list[Course]:
    return [course(seed) for seed in COURSES]


def shortest() -> dict[Point, Course]:
    """For each point the shortest course that passes it."""
    found: dict[Point, Course] = {}
    for one in sorted(courses(), key=lambda it: it.steps):
        for point in one.passed:
            found.setdefault(point, one)
    return found


def killed(point: Point, seed: int, nth: int) -> str | None:
    """Return the violation after a kill at that point, or None."""
    crashes = Crashes(point, nth)
    try:
        Cluster(seed, trouble_s=TROUBLE_S, crashes=crashes).run()
    except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding
        return f"{point}, the {nth}. time in course {seed}: {type(error).__name__}: {error}"
    return None if crashes.happened else f"{point} was not passed {nth} times in course {seed}"


def judged(runs: Iterable[tuple[Point, int, int]]) -> None:
    wrong = [text for run in runs if (text := killed(*run)) is not None]
    assert not wrong, f"{len(wrong)} runs went wrong; the first: {wrong[0]}"


def test_every_point_is_passed_in_some_course() -> None:
    missing = [str(point) for point in every() if point not in shortest()]
    assert not missing, f"no course passes {missing}: extend the simulator, or take more courses"
    unknown = [str(point) for point in shortest() if point not in set(every())]
    assert not unknown, f"not in the list of points: {unknown}"


def test_the_list_has_every_durable_fact_and_every_message() -> None:
    listed = {(point.who, point.deed, point.what) for point in (*every(), *MOOT)}
    for kind in set(jobs.DURABLE) - {JournalRestored, InputFailed}:
        assert (Who.COORDINATOR, Deed.WRITES, kind.__name__) in listed
    for kind in members(control_channel.Command):
        assert (Who.COORDINATOR, Deed.SENDS, kind.__name__) in listed
        assert (Who.AGENT, Deed.TAKES, kind.__name__) in listed
    for kind in members(agent_facts.Fact):
        assert (Who.AGENT, Deed.DECIDES, kind.__name__) in listed
    assert len(listed) > 110


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_when_a_process_dies_at_a_point(part: int) -> None:
    found = shortest()
    judged((point, found[point].seed, 1) for point in every()[part::PARTS] if point in found)


@pytest.mark.parametrize("fact", ["RoundBegun", "MemberVouched"])
def test_nothing_is_lost_when_an_agent_dies_as_it_asks_or_hears_a_vouch(fact: str) -> None:
    """Not only the first time in a course: its gang has lived by vouches for a while then."""
    runs = []
    for seed in VOUCHING:
        for when in When:
            point = Point(Who.AGENT, Deed.DECIDES, fact, when)
            times = course(seed).passed[point]
            assert times > 10
            runs += [(point, seed, nth) for nth in (1, 1 + times // 3, 1 + 2 * times // 3, times)]
    judged(runs)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", COURSES)
def test_nothing_is_lost_in_any_course(seed: int) -> None:
    """Each point that the course passes, at one of the times that it does."""
    passed = course(seed).passed
    judged((point, seed, 1 + seed * 7919 % passed[point]) for point in every() if point in passed)

"""Crash points: every durable write and every message of the control path, before and after it.

The list is made from the types themselves (facts of both cores, messages of the protocol, commands
and phases of a shim), so that a new one is in it without anybody's help.
"""

from __future__ import annotations

import enum
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from agent.core import effects as agent_actions
from agent.core import facts as agent_facts
from agent.core import shim_protocol
from muster.protocol.link import control_channel
from orchestrator.core.facts import effects, jobs
from orchestrator.core.facts.cluster import InputFailed
from orchestrator.core.facts.enrolment import OfCredentials
from orchestrator.core.facts.restored import JournalRestored


class Who(enum.Enum):
    """The process that dies."""

    COORDINATOR = "coordinator"
    AGENT = "agent"
    SHIM = "shim"


class Deed(enum.Enum):
    """WRITES: onto a disk. SENDS and TAKES: a message. DECIDES: a fact that is only in memory."""

    WRITES = "writes"
    SENDS = "sends"
    TAKES = "takes"
    DECIDES = "decides"


class When(enum.Enum):
    BEFORE = "before"
    AFTER = "after"


class Point(NamedTuple):
    who: Who
    deed: Deed
    what: str
    when: When

    def __str__(self) -> str:
        return f"{self.who.value} dies {self.when.value} it {self.deed.value} {self.what}"


ON_DISK: Final = (
    agent_actions.KeepCluster,
    agent_actions.CreateTask,
    agent_actions.StoreRecord,
    agent_actions.ArrangeNetwork,
    agent_actions.RestoreNetwork,
    agent_actions.RemoveTask,
)
"""The agent's writes to its node's disk. It keeps no journal: it receives everything else again."""

IN_MEMORY: Final = (
    agent_actions.SendReport,
    agent_actions.CloseLink,
    agent_actions.UseSettings,
    agent_actions.UseUsers,
    agent_actions.AskMembers,
    agent_actions.SendToShim,
    agent_actions.ReleasePort,
    agent_actions.WatchTraffic,
    agent_actions.WatchPeers,
    agent_actions.TakeStacks,
    agent_actions.SetTimer,
)
"""And what leaves nothing there: messages have points of their own. A new action is in one of the
two, or the list below cannot be made."""


MOOT: Final = frozenset(
    {
        Point(Who.SHIM, Deed.TAKES, "ShimRelease", When.AFTER),
        # No pool of the courses has backfill: tests/simulation/test_backfill_worlds.py has.
        *(Point(Who.COORDINATOR, Deed.WRITES, "StartPromised", when) for when in When),
        *(Point(Who.COORDINATOR, Deed.WRITES, "StartMoved", when) for when in When),
        *(Point(Who.COORDINATOR, Deed.WRITES, "JobPassed", when) for when in When),
        # No course has users or nodes with certificates: tests/orchestrator/test_process.py and
        # tests/cluster/test_join.py have.
        *(
            Point(Who.COORDINATOR, Deed.WRITES, kind.__name__, when)
            for kind in typing.get_args(OfCredentials)
            for when in When
        ),
        *(Point(Who.COORDINATOR, Deed.SENDS, "PeopleChanged", when) for when in When),
        # No course changes settings or users while it runs, or has hooks of a site. An agent that
        # misses a change has it from the next Welcome: tests/cluster/test_central_settings.py,
        # tests/cluster/test_hooks.py.
        *(
            Point(who, deed, kind, when)
            for who, deed, kind in (
                (Who.COORDINATOR, Deed.SENDS, "GiveSettings"),
                (Who.COORDINATOR, Deed.SENDS, "GiveUsers"),
                (Who.AGENT, Deed.TAKES, "GiveSettings"),
                (Who.AGENT, Deed.TAKES, "GiveUsers"),
                (Who.AGENT, Deed.DECIDES, "SettingsChanged"),
                (Who.AGENT, Deed.DECIDES, "EpilogSaid"),
            )
            for when in When
        ),
    }
)
"""It goes by itself then."""


def members(union: object) -> Iterator[type]:
    """The types of a union, those of unions in it among them."""
    found = typing.get_args(union)
    if not found:
        assert isinstance(union, type), union
        yield union
    for one in found:
        yield from members(one)


def every() -> tuple[Point, ...]:
    """All crash points."""
    strayed = set(members(agent_actions.Effect)) - {*ON_DISK, *IN_MEMORY}
    assert not strayed, f"is it written to a disk? {strayed}"
    phases = [phase.value for phase in shim_protocol.ShimPhase]
    found = (
        *_points(Who.COORDINATOR, Deed.WRITES, _durable_facts()),
        *_points(Who.COORDINATOR, Deed.SENDS, _names(control_channel.Command)),
        *_points(Who.COORDINATOR, Deed.SENDS, _names(effects.Result)),
        *_points(Who.COORDINATOR, Deed.TAKES, _names(control_channel.Report)),
        *_points(Who.AGENT, Deed.DECIDES, _names(agent_facts.Fact)),
        *_points(Who.AGENT, Deed.WRITES, [kind.__name__ for kind in ON_DISK]),
        *_points(Who.AGENT, Deed.SENDS, _names(control_channel.Report)),
        *_points(Who.AGENT, Deed.SENDS, _names(shim_protocol.ShimCommand)),
        *_points(Who.AGENT, Deed.TAKES, _names(control_channel.Command)),
        *_points(Who.SHIM, Deed.TAKES, _names(shim_protocol.ShimCommand)),
        *_points(Who.SHIM, Deed.WRITES, phases),
    )
    return tuple(point for point in found if point not in MOOT)


def _durable_facts() -> list[str]:
    """Return the facts that the coordinator writes: `muster restore` writes one of the others, and
    a bug in a decision the last one."""
    return [kind.__name__ for kind in jobs.DURABLE if kind not in {JournalRestored, InputFailed}]


def _names(union: object) -> list[str]:
    return [kind.__name__ for kind in members(union)]


def _points(who: Who, deed: Deed, what: Iterable[str]) -> list[Point]:
    return [Point(who, deed, name, when) for name, when in product(what, When)]


class Crashes:
    """Counts the points that a run passes; at the `nth` passing of `wanted` its process dies."""

    def __init__(self, wanted: Point | None = None, nth: int = 1) -> None:
        self.wanted = wanted
        self.nth = nth
        self.passed: Counter[Point] = Counter()
        self.happened = False

    def due(self, who: Who, deed: Deed, what: str, when: When) -> bool:
        """True if the process is to die here."""
        point = Point(who, deed, what, when)
        self.passed[point] += 1
        if point != self.wanted or self.passed[point] != self.nth:
            return False
        self.happened = True
        return True

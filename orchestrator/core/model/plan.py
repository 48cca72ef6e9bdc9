"""The plan of the queues: planned starts of waiting jobs, how a pool orders its jobs, and an
index of those by size and time limit, so that a pass skips jobs without room.

Times are monotonic seconds of this process; `math.inf` is later than every known time.
"""

from __future__ import annotations

import enum
import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from muster.protocol.ids import JobId, NodeName
from muster.spec.model import JobSpec


class Backfill(enum.Enum):
    """The jobs that may start before jobs ahead of them: those that delay no promise, those that do
    not delay the first job, or none.
    """

    CONSERVATIVE = "conservative"
    EASY = "easy"
    OFF = "off"


class PoolPolicy(msgspec.Struct, frozen=True):
    """The backfill of a pool's queue. `promises` counts jobs at its head."""

    backfill: Backfill = Backfill.CONSERVATIVE
    promises: int = 100

    @property
    def is_strict(self) -> bool:
        """True if the first job of the queue holds up all others, and nothing is planned."""
        return self.backfill is Backfill.OFF

    @property
    def horizon(self) -> int:
        """The number of waiting jobs whose start is planned."""
        return 1 if self.backfill is Backfill.EASY else self.promises


DEFAULT_POLICY: Final = PoolPolicy()


class MoveCause(enum.Enum):
    """The event by which a promised start moved later."""

    NODE_LOST = "node_lost"
    UNREACHABLE = "unreachable"
    DRAIN = "drain"
    QUARANTINE = "quarantine"
    RESUME = "resume"
    NODE_CHANGED = "node_changed"
    RETRY = "retry"
    PRIORITY = "priority"
    LIMIT = "limit"
    SET = "set"
    RELEASE = "release"
    POOL = "pool"
    OVERRUN = "overrun"
    RESTART = "restart"
    UNNAMED = "unnamed"


MOVED_BY: Final[dict[MoveCause, str]] = {
    MoveCause.NODE_LOST: "{node} was lost",
    MoveCause.UNREACHABLE: "{node} became unreachable",
    MoveCause.DRAIN: "{node} was drained",
    MoveCause.QUARANTINE: "{node} was quarantined",
    MoveCause.RESUME: "{node} was resumed before its jobs had to end",
    MoveCause.NODE_CHANGED: "{node} changed",
    MoveCause.RETRY: "job {job} is retried",
    MoveCause.PRIORITY: "job {job} has a higher priority",
    MoveCause.LIMIT: "job {job} got a longer time limit",
    MoveCause.SET: "job {job} was changed by a user",
    MoveCause.RELEASE: "job {job} was released",
    MoveCause.POOL: "the settings of the pool changed",
    MoveCause.OVERRUN: "job {job} needed longer to start or to end than planned",
    MoveCause.RESTART: "the coordinator was restarted",
    MoveCause.UNNAMED: "of an event without a name, which is a bug of Muster",
}
"""In words, to follow `because`."""


class QueueEvent(msgspec.Struct, frozen=True):
    """An event that may move promised starts. `job` or `node` names its subject."""

    cause: MoveCause
    job: JobId | None = None
    node: NodeName | None = None

    @property
    def text(self) -> str:
        return MOVED_BY[self.cause].format(job=self.job, node=self.node)


class PlannedShare(msgspec.Struct, frozen=True):
    """The share of a node that a waiting job gets, as `state.Share`."""

    node: NodeName
    gpus: tuple[str, ...]
    whole: bool
    cpus: int
    memory_bytes: int


class Booking(msgspec.Struct, frozen=True):
    """Nodes that are kept for a waiting job from `start` to `end`.

    With a start of `math.inf`, nobody knows when the job can start. Then `shares` has all nodes
    that fit the job, so that no job without an end takes them before.
    """

    start: float
    end: float
    shares: tuple[PlannedShare, ...]

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(share.node for share in self.shares)


class Deadline(msgspec.Struct, frozen=True):
    """The time at which a drain of a node ends its jobs. `number` is that of the drain."""

    node: NodeName
    number: int
    at: float


class PlannedEnd(msgspec.Struct, frozen=True):
    """The time at which an attempt has released its nodes, as planned when its other fields last
    changed.
    """

    attempt: int
    stage: str
    since: float
    limit_s: float
    grace_s: float
    drains: tuple[Deadline, ...]
    at: float


Sights = dict[NodeName, tuple[Any, ...]]
"""The nodes as a pass has seen them."""


class QueuePlan(msgspec.Struct, frozen=True):
    """`promises` are the promised starts, `ends` the planned ends of running attempts, by job.

    `began` is the time of the first pass of this process. `events` may still move promises, because
    no pass has looked at all bookings since. `restored` are jobs whose promise is from an earlier
    process. `next_job` is where a pass that has used up its budget goes on. `wakes_at` is the time
    of the next pass without any other reason. `lease_s` is the time after which a silent node is
    given up.

    The rest lets the next pass leave out what has not changed. `seen` are the nodes as the last
    pass has seen them, and `touched` those whose bookings it has changed. `unseen` are nodes that
    have changed since `next_job` and the jobs behind it were looked at. `hopeless` are jobs near
    the head that have no booking, `anew` new or changed jobs that no pass has looked at.
    `memo` are results of the last pass that are computed anew if they are missing.
    """

    bookings: dict[JobId, Booking] = {}
    promises: dict[JobId, float] = {}
    ends: dict[JobId, PlannedEnd] = {}
    events: tuple[QueueEvent, ...] = ()
    began: float | None = None
    restored: tuple[JobId, ...] = ()
    next_job: JobId | None = None
    wakes_at: float | None = None
    lease_s: float = 0.0
    seen: Sights = {}
    touched: frozenset[NodeName] = frozenset()
    unseen: frozenset[NodeName] = frozenset()
    hopeless: frozenset[JobId] = frozenset()
    anew: frozenset[JobId] = frozenset()
    memo: Any = None


Place = tuple[int, JobId]
"""The place of a job in its queue: the negative priority and the id."""
Size = tuple[str, int | None, int]
"""The pool, the GPUs of each node (None: whole nodes) and the number of nodes."""
BUCKETS_PER_OCTAVE: Final = 2
_SHARE: Final = 0.999
"""Tolerance of the shortest limit of a bucket, because logarithms are rounded."""


def size_of(spec: JobSpec) -> Size:
    return spec.pool, spec.resources.gpu, spec.nodes


@dataclass(slots=True)
class WaitingIndex:
    """The places of waiting jobs, by size and by the logarithm of the time limit."""

    places: dict[Size, dict[int, list[Place]]] = field(default_factory=dict)

    def add(self, spec: JobSpec, job: JobId) -> None:
        buckets = self.places.setdefault(size_of(spec), {})
        insort(buckets.setdefault(_bucket(spec.time_limit_s), []), (-spec.priority, job))

    def remove(self, spec: JobSpec, job: JobId) -> None:
        size, number = size_of(spec), _bucket(spec.time_limit_s)
        buckets = self.places[size]
        found = buckets[number]
        del found[bisect_left(found, (-spec.priority, job))]
        if not found:
            del buckets[number]
        if not buckets:
            del self.places[size]

    def behind(
        self, pool: str, first: Place, longest_s: Callable[[Size], float]
    ) -> Iterator[Place]:
        """The jobs of a pool from a place on in their order, without most of those whose time limit
        is longer than `longest_s` of their size.
        """
        found: list[list[Place]] = []
        for size, buckets in self.places.items():
            if size[0] == pool:
                longest = longest_s(size)
                found += [it for number, it in buckets.items() if _shortest_s(number) <= longest]
        return heapq.merge(*(_from(places, first) for places in found))


def _from(places: list[Place], first: Place) -> Iterator[Place]:
    for at in range(bisect_left(places, first), len(places)):
        yield places[at]


def _bucket(limit_s: float | None) -> int:
    if limit_s is None:
        return _ENDLESS
    return max(0, math.floor(BUCKETS_PER_OCTAVE * math.log2(max(limit_s, 1.0))))


def _shortest_s(bucket: int) -> float:
    """A bound of the time limits in a bucket."""
    if bucket == _ENDLESS:
        return math.inf
    return 0.0 if bucket == 0 else _SHARE * 2.0 ** (bucket / BUCKETS_PER_OCTAVE)


_ENDLESS: Final = 1 << 20

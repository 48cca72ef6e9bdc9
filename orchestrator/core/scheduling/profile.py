"""Profile of the future: planned ends of running attempts, and which nodes a job could have when.

The placement code itself judges a job at a later time, on copies of the nodes with the holders of
that time. The profile only proposes the times that are worth a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from msgspec import structs

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.spec.model import JobSpec
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.grace import stop_grace_s
from orchestrator.core.model.leases import over_at
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import Booking, PlannedEnd, PlannedShare
from orchestrator.core.model.state import Attempt, Job, Node, Share, State
from orchestrator.core.scheduling.gpus import given, may_share, share_of
from orchestrator.core.scheduling.placement import Considered, consider, unfit

START_S: Final = 60.0
"""Time planned from the placement of a gang to the start of its time limit."""
CLEAN_S: Final = 10.0
"""Time planned from the end of the grace period until the nodes are free."""
SLIP_S: Final = 60.0
"""An attempt that is late is planned to end this much later than planned, then twice as much."""


class Held(NamedTuple):
    """A share of a node that is held from `start` to `end`."""

    job: JobId
    start: float
    end: float
    share: Share


def duration_s(spec: JobSpec) -> float:
    """The longest time that a job holds its nodes; infinite without a time limit."""
    if spec.time_limit_s is None:
        return math.inf
    return START_S + spec.time_limit_s + spec.stop.grace_s + CLEAN_S


def planned_end(state: State, job: Job, before: PlannedEnd | None, now: Instant) -> PlannedEnd:
    """Plan the end of the job's current attempt; keeps the plan if its reasons are the same."""
    attempt = job.current
    assert attempt is not None
    found = _reasons(state, job, attempt)
    if before is not None and _is_same(before, found):
        return before
    return structs.replace(found, at=_end_at(state, job, attempt, found, now))


def _is_same(before: PlannedEnd, found: PlannedEnd) -> bool:
    # What an agent reports again about the beginning of a run differs a little.
    known = structs.replace(before, at=0.0, since=found.since)
    return known == found and abs(before.since - found.since) < CLEAN_S / 2


def _reasons(state: State, job: Job, attempt: Attempt) -> PlannedEnd:
    since = state.running.get(job.id)
    limit_s = math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
    drains = [state.nodes[task.node].drain for task in attempt.present]
    timed = [it.number for it in drains if it is not None and it.left_s is not None]
    if attempt.phase is AttemptPhase.STOPPING:
        grace_s = stop_grace_s(job, attempt) or 0.0
        return PlannedEnd(attempt.number, "stop", 0.0, 0.0, grace_s, 0, 0.0)
    stage = "start" if since is None else "run"
    drained, grace_s = max(timed, default=0), job.spec.stop.grace_s
    return PlannedEnd(attempt.number, stage, since or 0.0, limit_s, grace_s, drained, 0.0)


def begun(job: Job, end: float) -> PlannedEnd:
    """The planned end of an attempt that is placed now."""
    limit_s = math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
    grace_s = job.spec.stop.grace_s
    return PlannedEnd(job.next_attempt, "start", 0.0, limit_s, grace_s, 0, end)


def _end_at(state: State, job: Job, attempt: Attempt, found: PlannedEnd, now: Instant) -> float:
    rest_s = found.grace_s + CLEAN_S
    if found.stage == "stop":
        return now.mono + rest_s
    began = found.since if found.stage == "run" else now.mono + START_S
    ends = [began + found.limit_s + rest_s]
    if not job.spec.elastic:
        drains = [state.nodes[task.node].drain for task in attempt.present]
        left = [it.left_s for it in drains if it is not None and it.left_s is not None]
        ends += [now.mono + left_s + rest_s for left_s in left]
    return min(ends)


def expected_end(state: State, job: Job, planned: PlannedEnd, now: Instant) -> float:
    """The time at which the attempt is expected to have released its nodes; later than now."""
    at = planned.at
    attempt = job.current
    assert attempt is not None
    for task in attempt.present:
        node = state.nodes[task.node]
        if node.link is not LinkState.CONNECTED:
            # Its agent ends the task at the end of the lease, if it has one.
            over = over_at(state, attempt, task)
            at = math.inf if over is None else max(at, over + CLEAN_S)
    return slipped(at, now.mono)


def slipped(at: float, now: float) -> float:
    """The planned time, or if that is over, a later one. It slips ever more seldom."""
    if at > now:
        return at
    step_s = SLIP_S
    while at + step_s <= now:
        step_s *= 2
    return at + step_s


class Profile:
    """The nodes over time. `bookings` is shared with the caller, who changes it by `book`."""

    def __init__(
        self,
        state: State,
        ends: dict[JobId, float],
        bookings: dict[JobId, Booking],
        now: Instant,
        returns_at: float,
        lease_s: float,
    ) -> None:
        self.state, self.now = state, now.mono
        self.bookings = bookings
        self.looks = 0
        self._ends = ends
        self._returns_at, self._lease_s = returns_at, lease_s
        self._booked: dict[NodeName, dict[JobId, Held]] = {}
        self._held: dict[NodeName, dict[JobId, Held]] = {}
        self._copies: dict[NodeName, Node] = {}
        for name, booking in bookings.items():
            self._add(self._booked, name, booking)

    def book(self, job: JobId, booking: Booking | None) -> None:
        """Replace the booking of a job; None removes it."""
        old = self.bookings.pop(job, None)
        for share in old.shares if old is not None else ():
            self._booked[share.node].pop(job, None)
        if booking is not None:
            self.bookings[job] = booking
            self._add(self._booked, job, booking)

    def hold(self, job: JobId, booking: Booking) -> None:
        """Let a job that is placed in this pass hold its nodes."""
        self.book(job, None)
        self._add(self._held, job, booking)

    @staticmethod
    def _add(table: dict[NodeName, dict[JobId, Held]], job: JobId, booking: Booking) -> None:
        for it in booking.shares:
            share = Share(it.gpus, it.whole, it.cpus, it.memory_bytes)
            held = Held(job, booking.start, booking.end, share)
            table.setdefault(it.node, {})[job] = held

    def node_returns_at(self, node: Node) -> float:
        """The time from which a node can be used if it is free; infinite if nobody knows."""
        match node.link:
            case LinkState.CONNECTED:
                return self.now
            case LinkState.SUSPECT:
                return slipped(node.answered_at + self._lease_s, self.now)
            case LinkState.OFFLINE:
                return self._returns_at if self._returns_at > self.now else math.inf
            case LinkState.LOST:
                return math.inf
            case _:
                assert_never(node.link)

    def holds(self, node: Node, ignored: Container[JobId]) -> Iterator[Held]:
        """Everything that holds a part of the node from now on."""
        for (job, _), share in node.holders.items():
            yield Held(job, -math.inf, self._ends[job], share)
        yield from self._held.get(node.name, {}).values()
        for held in self._booked.get(node.name, {}).values():
            if held.job not in ignored:
                yield held

    def judge(
        self,
        job: Job,
        start: float,
        end: float,
        ignored: Container[JobId],
        only: Sequence[NodeName] | None = None,
    ) -> tuple[Considered, State]:
        """Let the placement judge a job that holds its nodes from `start` to `end`.

        Returns the verdict, and the hypothetical state with the holders of that time. Bookings of
        the jobs in `ignored` do not count. `only` restricts the nodes.
        """
        known = self.state.nodes.values() if only is None else self._known(only)
        nodes = {node.name: self._copy(node, start, end, ignored) for node in known}
        if only is not None and any(node.inventory.shared_host for node in known):
            # Other agents of the same machines hold GPUs of it, and are no candidates here.
            machines = {node.inventory.machine_id for node in known}
            for node in self.state.nodes.values():
                if node.inventory.machine_id in machines and node.name not in nodes:
                    copy = self._copy(node, start, end, ignored)
                    nodes[node.name] = replace(copy, link=LinkState.LOST)
        self.looks += len(nodes)
        trial = State(networks=self.state.networks, nodes=nodes, unknown=self.state.unknown)
        return consider(trial, job), trial

    def _known(self, names: Sequence[NodeName]) -> list[Node]:
        return [self.state.nodes[name] for name in names if name in self.state.nodes]

    def _copy(self, node: Node, start: float, end: float, ignored: Container[JobId]) -> Node:
        holders = {
            (it.job, 0): it.share
            for it in self.holds(node, ignored)
            if it.end > start and (it.start < end or end == math.inf)
        }
        link, returns_at = node.link, self.node_returns_at(node)
        if returns_at <= start and returns_at < math.inf:
            link = LinkState.CONNECTED
        copy = self._copies.get(node.name)
        if copy is None:
            copy = self._copies[node.name] = replace(node)
        copy.holders, copy.link = holders, link
        return copy

    def free_now(self, pool: str) -> list[Node]:
        """The nodes of a pool of which something may be free now."""
        self.looks += len(self.state.nodes) // 8
        return [
            node
            for node in self.state.nodes.values()
            if node.link is LinkState.CONNECTED
            and node.drain is None
            and node.inventory.pool == pool
            and not any(share.whole for share in node.holders.values())
            and not any(it.share.whole for it in self._held.get(node.name, {}).values())
        ]

    def may_start(self, spec: JobSpec, free: list[Node], ignored: Container[JobId]) -> bool:
        """True if enough of the nodes in `free` may suit a job that starts now.

        A quick check: False is certain.
        """
        wanted, end = spec.nodes, self.now + duration_s(spec)
        parts = bool(spec.resources.gpu)
        left = len(free)
        for node in free:
            if left < wanted:
                return False
            if not parts and (node.holders or node.name in self._held):
                left -= 1
                continue
            for it in self._booked.get(node.name, {}).values():
                blocks = it.share.whole or not parts
                if blocks and it.job not in ignored and (it.start < end or end == math.inf):
                    left -= 1
                    break
        return left >= wanted

    def starts(self, job: Job, before: float, ignored: Container[JobId]) -> list[float]:
        """Times before `before` at which a job may fit, the earliest first.

        Enough nodes are free then for as long as the job may run. Whether they are a gang is left
        to `judge`.
        """
        spec, length_s = job.spec, duration_s(job.spec)
        changes: list[tuple[float, int]] = []
        self.looks += len(self.state.nodes)
        for node in self.state.nodes.values():
            if node.drain is not None or unfit(spec, node) is not None:
                continue
            returns = self.node_returns_at(node)
            for begin, end in self._gaps(spec, node, ignored):
                first = max(begin, returns)
                last = end - length_s if end < math.inf else math.inf
                if first < before and first < math.inf and first <= last:
                    changes += [(first, -1), (last, 1)]
        changes.sort()
        free = 0
        found: list[float] = []
        for at, change in changes:
            free -= change
            if change < 0 and free >= spec.nodes and (not found or found[-1] != at):
                found.append(at)
        return found

    def _gaps(
        self, spec: JobSpec, node: Node, ignored: Container[JobId]
    ) -> Iterator[tuple[float, float]]:
        """The spans of time in which the node may have room for the job."""
        held = list(self.holds(node, ignored))
        if not held:
            yield self.now, math.inf
            return
        edges = sorted({self.now, *(it.start for it in held), *(it.end for it in held)})
        begin: float | None = None
        for at in (edge for edge in edges if self.now <= edge < math.inf):
            there = [it.share for it in held if it.start <= at < it.end]
            if not there or may_share(spec, node, there):
                begin = at if begin is None else begin
            elif begin is not None:
                yield begin, at
                begin = None
        if begin is not None:
            # Those whose start is unknown hold the node from then on.
            yield begin, math.inf if all(it.start < math.inf for it in held) else _LAST


_LAST: Final = 1e300
"""Before every unknown time, and after every known one."""


def booking_of(
    trial: State, job: Job, gang: Sequence[NodeName], start: float, end: float
) -> Booking:
    """The booking of a gang that the placement has chosen in a hypothetical state."""
    shares = [(name, share_of(job.spec, given(trial, job.spec, name))) for name in gang]
    return Booking(start, end, tuple(PlannedShare(name, *share) for name, share in shares))

"""Planning of one waiting job: start it now, or book the nodes of its earliest start."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.timestamp import timestamp
from orchestrator.core.facts.jobs import AttemptPlaced, Fact
from orchestrator.core.facts.queue import JobPassed, StartMoved
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import (
    Booking,
    MoveCause,
    PlannedEnd,
    PlannedShare,
    QueueEvent,
)
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.gpus import free_gpus, given, share_of
from orchestrator.core.scheduling.placement import placement_reason
from orchestrator.core.scheduling.planned_ends import (
    LATER_S,
    begun,
    duration_s,
    expected_end,
    planned_end,
)
from orchestrator.core.scheduling.profile import Profile

PLACED_WORK: Final = 300
"""The work of a placement, with all that follows from it."""
PASSED_MAX: Final = 20
"""Number of jobs that the timeline of a job names as started before it."""
STARTS_TRIED: Final = 16
"""Number of possible starts that are judged for one booking."""
DISPLACING_WORK: Final = 500
"""The work of a look at the nodes that are promised to jobs behind one."""
DISPLACED_MAX: Final = 4
"""Number of promised jobs that may get other nodes so that one ahead of them starts."""
GANGS_TRIED: Final = 3
"""Number of gangs that are judged for such a start."""
_OF_THE_ORDER: Final = (MoveCause.PRIORITY, MoveCause.RELEASE, MoveCause.RETRY, MoveCause.SET)


def queues_of(state: State) -> dict[str, list[tuple[int, JobId]]]:
    """The queues of pools with backfill."""
    return {pool: queue for pool, queue in state.queues.items() if not state.policy(pool).is_strict}


class Planner:
    """Plans the jobs of a pass over the queues, one after the other."""

    def __init__(
        self,
        state: State,
        events: Sequence[QueueEvent],
        now: Instant,
        lease_s: float,
        *,
        freed: bool,
    ) -> None:
        plan = state.plan
        self.state, self.now, self.lease_s = state, now, lease_s
        self.began = now.mono if plan.began is None else plan.began
        self.returns_at = self.began + lease_s
        self.events = [*plan.events, *events]
        self.freed = freed
        self.ends = self._ends(plan.ends)
        # Plan a job again from its new position after a user has changed it.
        changed = {event.job for event in self.events if event.cause is MoveCause.SET}
        # Promises of an earlier process are in the jobs only.
        known = state.jobs if plan.began is None else plan.promises
        queued = set(filter(self._is_queued, plan.bookings.keys() | known.keys()))
        bookings = {
            name: it for name, it in plan.bookings.items() if name not in changed and name in queued
        }
        self.promises = {
            name: plan.promises.get(name, math.inf)
            for name in sorted(known)
            if name in queued and state.jobs[name].starts_by is not None
        }
        away = {it.name for it in state.nodes.values() if it.link is not LinkState.CONNECTED}
        self.expected = {
            name: expected_end(state, state.jobs[name], end, now, away)
            for name, end in self.ends.items()
        }
        self._note_late(plan.ends, self.expected)
        self.moved = {it.job for it in self.events if it.cause in _OF_THE_ORDER}
        # No decision uses the wall clock, so promises of an earlier process are made again.
        restored = self.promises if plan.began is None else plan.restored
        self.restored = {name for name in restored if name in self.promises}
        self.profile = Profile(state, self.expected, bookings, now, self.returns_at, lease_s)
        self.unsettled = set(bookings)
        # On which a verdict may have changed since the last pass.
        self.changed: AbstractSet[NodeName] = state.nodes.keys()
        self.facts: list[Fact] = []

    def _is_queued(self, name: JobId) -> bool:
        job = self.state.jobs.get(name)
        if job is None or job.phase is not JobPhase.QUEUED:
            return False
        pool = job.spec.pool
        return pool not in self.state.pools or not self.state.pools[pool].is_strict

    def _ends(self, before: dict[JobId, PlannedEnd]) -> dict[JobId, PlannedEnd]:
        state = self.state
        running = {name for node in state.nodes.values() for name, _ in node.holders}
        drained = {node.name for node in state.nodes.values() if node.drain is not None}
        return {
            name: planned_end(state, state.jobs[name], before.get(name), self.now, drained)
            for name in sorted(running)
        }

    def _note_late(self, before: dict[JobId, PlannedEnd], expected: dict[JobId, float]) -> None:
        """Add an event for each attempt that ends later than planned before."""
        for name, at in expected.items():
            old = before.get(name)
            if old is None or old.at >= at - LATER_S:
                continue
            job = self.state.jobs[name]
            tasks = job.current.present if job.current is not None else []
            away = [t.node for t in tasks if self.state.nodes[t.node].session is None]
            if away:
                event = QueueEvent(MoveCause.UNREACHABLE, node=away[0])
            elif (lost := self._lost_deadline(job, old)) is not None:
                event = lost
            elif self._is_cancelled_later(job, old):
                event = QueueEvent(MoveCause.SET, job=name)
            elif old.attempt == self.ends[name].attempt and old.limit_s < self.ends[name].limit_s:
                event = QueueEvent(MoveCause.LIMIT, job=name)
            else:
                event = QueueEvent(MoveCause.OVERRUN, job=name)
            if event not in self.events:
                self.events.append(event)
        absent = self._absent()
        for node in self.state.nodes.values():
            silent = (
                node.link is LinkState.SUSPECT and node.answered_at + self.lease_s <= self.now.mono
            )
            if silent or node.name in absent:
                self.events.append(QueueEvent(MoveCause.UNREACHABLE, node=node.name))

    def _absent(self) -> set[NodeName]:
        """The booked nodes that have not returned after a restart by the time planned for that."""
        nodes = self.state.nodes
        away = {it.name for it in nodes.values() if it.link is LinkState.OFFLINE}
        if not away or self.returns_at > self.now.mono:
            return set()
        booked = [it for it in self.state.plan.bookings.values() if it.start < math.inf]
        return {name for it in booked for name in away.intersection(it.nodes)}

    def _lost_deadline(self, job: Job, old: PlannedEnd) -> QueueEvent | None:
        """The event by which a drain no longer ends the attempt as early as planned."""
        for deadline in old.drains:
            node = self.state.nodes.get(deadline.node)
            if node is not None and deadline not in self.ends[job.id].drains:
                cause = MoveCause.RESUME if node.drain is None else MoveCause.DRAIN
                return QueueEvent(cause, node=node.name)
        return None

    def _is_cancelled_later(self, job: Job, old: PlannedEnd) -> bool:
        """True if a cancellation gave the attempt a longer grace period than its job has."""
        end = self.ends[job.id]
        return end.stage == "stop" and job.cancel is not None and end.grace_s > old.grace_s

    def _plan(self, job: Job) -> bool:
        """Start a job, or plan its start; returns whether it waits with a booking."""
        profile, old = self.profile, self.profile.bookings.get(job.id)
        valid = old is not None and self._holds(job, old)
        # A job that is new in its position, or has lost its promised start, ignores the bookings of
        # later jobs. Other jobs respect the promises made to later jobs.
        unknown = old is not None and old.start == math.inf
        lost = old is not None and not valid and not unknown and job.id in self.promises
        first = self._is_new(job) or lost
        ignored = {job.id} | self._behind(job, promised=first) | self._unsure_elsewhere(job)
        # A job whose start is unknown may not break a promise.
        if (valid or unknown) and job.id in self.promises:
            ignored |= profile.endless
        self.unsettled.discard(job.id)
        if self._start(job, ignored) or (self._may_displace(job) and self._displace(job, ignored)):
            return False
        now = self.now.mono
        if valid and old is not None and now < old.start < math.inf:
            if self.freed:
                earlier = self._earliest(job, old.start - LATER_S, ignored)
                # A promise must not depend on a node that may not return.
                free = job.id not in self.promises
                if earlier is not None and (free or self._are_there(earlier)):
                    profile.book(job.id, earlier)
            return True
        found = None
        if not self._waits_for_unknown(job, ignored):
            found = self._earliest(job, math.inf, ignored)
        if found is None and valid and old is not None and old.start == math.inf:
            found = old
        found = found or self._unknown_start(job, ignored)
        profile.book(job.id, found)
        return found is not None

    def _may_displace(self, job: Job) -> bool:
        """True if the job may start now on nodes that are promised to jobs behind it.

        One of them has changed: the last pass has tried all others.
        """
        return self.freed and self.profile.has_idle(job.spec, self.changed | self.profile.touched)

    def _displace(self, job: Job, ignored: AbstractSet[JobId]) -> bool:
        """Start the job now on nodes that are promised to jobs behind it, if these can have others
        by the promised time. Returns whether it starts.
        """
        profile, now = self.profile, self.now.mono
        end = now + duration_s(job.spec)
        # No other booking matters for a start now.
        idle = profile.idle_nodes(job.spec)
        near = profile.booked_on(idle)
        behind = near & self._behind(job, promised=True) & self.promises.keys()
        behind -= self.restored | ignored
        # A job that avoids nodes may need some of them: that depends on all nodes.
        only = None if job.avoid else idle
        for _ in range(GANGS_TRIED):
            if not behind:
                return False
            profile.spent += DISPLACING_WORK
            if not profile.may_begin(job.spec, near & ignored | behind, idle):
                return False
            gang, trial = profile.judge(job, now, end, near & ignored | behind, only)
            if not gang:
                return False
            displaced = [it for it in behind if self._needs(it, gang, end)]
            if len(displaced) > DISPLACED_MAX:
                return False
            before = {name: profile.bookings.get(name) for name in (job.id, *displaced)}
            touched = profile.touched.copy()
            for name in displaced:
                profile.book(name, None)
            profile.book(job.id, booking_of(trial, job, gang, now, end))
            stuck = self._rebook(sorted(displaced, key=self._place))
            if stuck is None and self._start(job, ignored):
                return True
            for name in before:
                profile.book(name, None)
            for name, booking in before.items():
                profile.book(name, booking)
            profile.touched = touched
            if stuck is None:
                return False
            behind.remove(stuck)
        return False

    def _needs(self, name: JobId, gang: Sequence[NodeName], before: float) -> bool:
        """True if a booking begins before `before` on one of these nodes."""
        booking = self.profile.bookings[name]
        return booking.start < before and not set(gang).isdisjoint(booking.nodes)

    def _rebook(self, names: Sequence[JobId]) -> JobId | None:
        """Book other nodes for promised jobs; returns the first one whose promise would be broken,
        or None.
        """
        for name in names:
            at_the_latest = math.nextafter(self.promises[name], math.inf)
            ignored = {name} | self.profile.endless
            found = self._earliest(self.state.jobs[name], at_the_latest, ignored)
            if found is None or not self._are_there(found):
                return name
            self.profile.book(name, found)
        return None

    def _place(self, name: JobId) -> tuple[int, JobId]:
        return -self.state.jobs[name].spec.priority, name

    def _is_new(self, job: Job) -> bool:
        """True if the job has come to its place in the queue since the last pass."""
        return job.id in self.moved

    def _behind(self, job: Job, *, promised: bool) -> set[JobId]:
        """Jobs behind this one in its queue whose bookings have not been looked at yet.

        Without `promised`, only those that have no promise.
        """
        mine, jobs = (-job.spec.priority, job.id), self.state.jobs
        others = self.unsettled if promised else self.unsettled - self.promises.keys()
        return {
            name
            for name in others
            if jobs[name].spec.pool == job.spec.pool and (-jobs[name].spec.priority, name) > mine
        }

    def _unsure_elsewhere(self, job: Job) -> set[JobId]:
        """Jobs of other pools whose start nobody knows: it depends on the end of a job without a
        time limit, or on a node that is away.

        They matter because agents of one machine may be in different pools.
        """
        jobs = self.state.jobs
        if sum(map(bool, queues_of(self.state).values())) < 2:
            return set()
        return {
            name
            for name, booking in self.profile.bookings.items()
            if jobs[name].spec.pool != job.spec.pool
            and name not in self.promises
            and (booking.start == math.inf or not self._are_there(booking))
        }

    def _waits_for_unknown(self, job: Job, ignored: set[JobId]) -> bool:
        """True if a job ahead may need the same nodes, and nobody knows when.

        Then no start is planned: otherwise promises to the jobs behind would hold up that job.
        """
        bookings = self.profile.bookings
        endless = [bookings[name].nodes for name in self.profile.endless - ignored]
        if not endless:
            return False
        fitting = self._fitting(job)
        return any(not fitting.isdisjoint(nodes) for nodes in endless)

    def _holds(self, job: Job, booking: Booking) -> bool:
        """True if the job can still start at its planned start on its booked nodes."""
        if booking.start == math.inf:
            names = self._fitting(job)
            return names == set(booking.nodes)
        start = max(booking.start, self.now.mono)
        end = start + duration_s(job.spec)
        if end == booking.end and self._is_untouched(job, booking):
            return True
        ignored = {job.id}
        if job.id in self.promises:
            ignored |= self.profile.endless
        found, trial = self.profile.judge(job, start, end, ignored, booking.nodes)
        if set(found) != set(booking.nodes):
            return False
        if end != booking.end or not all(_is_free(trial, share) for share in booking.shares):
            # Otherwise another job may count on the GPUs that this one leaves, and lose them again.
            again = booking_of(trial, job, found, booking.start, end)
            self.profile.book(job.id, again)
        return True

    def _is_untouched(self, job: Job, booking: Booking) -> bool:
        """True if the last verdict on the booking still holds: nothing has changed on its nodes,
        and no booking counts now that was ignored when it was made.
        """
        if booking.start <= self.now.mono or not self.profile.is_simple:
            return False
        if (self.profile.endless and job.id not in self.promises) or self._unsure_elsewhere(job):
            return False
        plan, nodes = self.state.plan, booking.nodes
        looks = (self.changed, plan.unseen, plan.touched, self.profile.touched)
        return all(it.isdisjoint(nodes) for it in looks)

    def _start(self, job: Job, ignored: AbstractSet[JobId]) -> bool:
        """Place the job now if that delays no booking that counts."""
        profile = self.profile
        if not profile.may_begin(job.spec, ignored):
            return False
        now = self.now.mono
        end = now + duration_s(job.spec)
        gang, trial = profile.judge(job, now, end, ignored)
        if not gang:
            return False
        gpus = tuple(given(trial, job.spec, name) for name in gang)
        why = placement_reason(trial, job, gang, all_fit=profile.is_simple)
        late = self.promises.pop(job.id, math.inf) + LATER_S < now
        if late:
            self.facts.append(StartMoved(job.id, self.now.wall, self._event(job)))
        ahead, passed = self._ahead_of(job, gang, end)
        profile.hold(job.id, booking_of(trial, job, gang, now, end))
        profile.spent += PLACED_WORK
        self.ends[job.id] = begun(job, self.now, end)
        shares = gpus if any(gpus) else ()
        self.facts.append(AttemptPlaced(job.id, job.next_attempt, gang, why, shares, ahead=ahead))
        if passed is not None and self._is_named(passed):
            self.facts.append(passed)
        self.unsettled.discard(job.id)
        return True

    def _ahead_of(
        self, job: Job, gang: tuple[NodeName, ...], end: float
    ) -> tuple[str, JobPassed | None]:
        """Return why a start before the jobs ahead in the queue does not delay the first of them,
        for the job that starts and for that one; empty and None if none waits there.
        """
        queue = self.state.queues[job.spec.pool]
        placed = {fact.job for fact in self.facts if isinstance(fact, AttemptPlaced)}
        before = islice(queue, bisect_left(queue, (-job.spec.priority, job.id)))
        first = next((name for _, name in before if name not in placed), None)
        if first is None:
            return "", None
        booking = self.profile.bookings.get(first)
        if booking is None:
            why, costs = "it has no planned start", "this job has no planned start"
        elif end <= booking.start < math.inf:
            kind = "promise" if first in self.promises else "planned start"
            by, at = self._clock(end), self._clock(booking.start)
            why = f"ends by {by}, before its {kind} at {at}"
            costs = f"it ends by {by}, before the {kind} at {at}"
        elif booking.start == math.inf:
            why, costs = "its start is unknown", "the start of this job is unknown"
        elif set(gang).isdisjoint(booking.nodes):
            at = self._clock(booking.start)
            why, costs = f"it starts elsewhere, at {at}", f"this job starts elsewhere, at {at}"
        else:
            why = costs = "there is room for both"
        text = f"started ahead of job {first}: {why}"
        return text, JobPassed(first, job.id, tuple(gang), costs)

    def _is_named(self, passed: JobPassed) -> bool:
        """True if the timeline of the passed job has room for one more."""
        new = sum(isinstance(it, JobPassed) and it.job == passed.job for it in self.facts)
        return self.state.jobs[passed.job].passed_by + new < PASSED_MAX

    def _clock(self, at: float) -> str:
        return f"{timestamp(self.now.wall + at - self.now.mono):%Y-%m-%dT%H:%M:%SZ}"

    def _earliest(self, job: Job, before: float, ignored: set[JobId]) -> Booking | None:
        """The earliest booking that starts before `before`, or None."""
        length_s = duration_s(job.spec)
        for at in islice(self.profile.starts(job, before, ignored), STARTS_TRIED):
            if at <= self.now.mono:
                continue
            gang, trial = self.profile.judge(job, at, at + length_s, ignored)
            if gang:
                return booking_of(trial, job, gang, at, at + length_s)
        return None

    def _unknown_start(self, job: Job, ignored: set[JobId]) -> Booking | None:
        """The booking of a job that waits for jobs without a time limit.

        Returns None if it waits for something else, such as a drained node: then it holds up
        nobody.
        """
        gang, _ = self.profile.judge(job, math.inf, math.inf, ignored)
        if not gang:
            return None
        shares = [PlannedShare(name, (), True, 0, 0) for name in sorted(self._fitting(job))]
        return Booking(math.inf, math.inf, tuple(shares))

    def _fitting(self, job: Job) -> set[NodeName]:
        return {node.name for node in self.profile.fitting(job.spec) if node.in_service}

    def _unbook(self, job: Job) -> None:
        self.unsettled.discard(job.id)
        self.profile.book(job.id, None)

    def _are_there(self, booking: Booking) -> bool:
        nodes = [self.state.nodes.get(name) for name in booking.nodes]
        return all(it is not None and it.link is LinkState.CONNECTED for it in nodes)

    def _event(self, job: Job) -> QueueEvent:
        """The event that explains why the promise of a job moves."""
        old = self.state.plan.bookings.get(job.id)
        nodes = set(old.nodes) if old is not None else set()
        mine = (-job.spec.priority, job.id)

        def rank(event: QueueEvent) -> int:
            if event.job == job.id:
                return 0
            if event.node is not None:
                return 1 if event.node in nodes else 4
            if event.job is None:
                return 3
            other = self.state.jobs.get(event.job)
            if other is None:
                return 5
            ahead = (-other.spec.priority, other.id) < mine
            return 2 if ahead or event.cause not in _OF_THE_ORDER else 5

        if self.promises.get(job.id) == math.inf:
            return QueueEvent(MoveCause.RESTART)
        return min(self.events, key=rank, default=QueueEvent(MoveCause.UNNAMED))


def _is_free(trial: State, share: PlannedShare) -> bool:
    """True if the booked GPUs are free in a hypothetical state, and not only as many others."""
    if not share.gpus:
        return True
    free = {gpu.uuid for gpu in free_gpus(trial, trial.nodes[share.node])}
    return free.issuperset(share.gpus)


def booking_of(
    trial: State, job: Job, gang: Sequence[NodeName], start: float, end: float
) -> Booking:
    """The booking of a gang that the placement has chosen in a hypothetical state."""
    shares = [(name, share_of(job.spec, given(trial, job.spec, name))) for name in gang]
    return Booking(start, end, tuple(PlannedShare(name, *share) for name, share in shares))

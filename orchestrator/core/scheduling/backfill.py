"""A pass over the queues: which waiting jobs start now, and when the others start at the latest.

The jobs at the head of a queue have bookings: nodes kept for them from a planned start. A job
behind them starts now only if it holds no booked node when its booking begins. Bookings stay from
pass to pass, so a promised start moves later only if an event takes the nodes or the time from its
booking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from orchestrator.core.facts.jobs import AttemptPlaced, Fact, JobHeld
from orchestrator.core.facts.queue import QueuesPlanned, StartMoved, StartPromised
from orchestrator.core.model.node import ITSELF, LinkState
from orchestrator.core.model.plan import (
    Booking,
    MoveCause,
    PlannedEnd,
    PlannedShare,
    QueueEvent,
    QueuePlan,
)
from orchestrator.core.model.state import Job, Node, State
from orchestrator.core.scheduling.gpus import given
from orchestrator.core.scheduling.placement import unfit, why_there
from orchestrator.core.scheduling.profile import (
    Profile,
    begun,
    booking_of,
    duration_s,
    expected_end,
    planned_end,
)
from orchestrator.core.scheduling.restore_hold import is_held, unknown_tasks

LOOKS_MAX: Final = 20_000
"""Number of nodes that one pass judges at most. The next pass goes on where it has stopped."""
IMPROVED_SHARE: Final = 4
"""Bookings are moved earlier only during the first such part of a pass."""
STARTS_TRIED: Final = 16
"""Number of possible starts that are judged for one booking."""
LATER_S: Final = 1.0
"""A start that is later by less is the same promise."""
EVENTS_KEPT: Final = 64
_ERROR_CHARS: Final = 200
_OF_THE_ORDER: Final = (MoveCause.PRIORITY, MoveCause.RELEASE, MoveCause.RETRY, MoveCause.SET)


def schedule(
    state: State,
    events: Sequence[QueueEvent],
    now: Instant,
    lease_s: float,
    *,
    freed: bool = True,
    resume: bool = False,
    looks_max: int = LOOKS_MAX,
) -> list[Fact]:
    """Return the gangs that start now, the promises made or moved, and the new plan.

    Only pools with backfill take part. `lease_s` is the time after which a silent node is given up.
    `freed`: capacity may have become free since the last pass. `resume`: go on where that pass has
    stopped; nothing has happened since.
    """
    if state.disk_full or is_held(state):
        return []
    plan = state.plan
    if not any(_queues(state).values()) and not plan.bookings and not plan.promises:
        return []
    return _Pass(state, events, now, lease_s, looks_max, freed=freed).run(resume=resume)


def may_grow(state: State, job: Job) -> bool:
    """True if a running gang may get more nodes, because each waiting job of its pool either has
    booked the nodes that it will get, or cannot start at all.
    """
    policy = state.policy(job.spec.pool)
    waiting = len(state.queues.get(job.spec.pool, ()))
    if policy.is_strict:
        return not waiting
    return waiting <= policy.horizon and state.plan.next_job is None


def is_booked(state: State, job: Job, node: NodeName) -> bool:
    """True if a waiting job needs the node before the running job has ended."""
    planned = state.plan.ends.get(job.id)
    ends = math.inf if planned is None else planned.at
    return any(
        node in booking.nodes and (booking.start < ends or ends == math.inf)
        for booking in state.plan.bookings.values()
    )


def _queues(state: State) -> dict[str, list[tuple[int, JobId]]]:
    """The queues of pools with backfill."""
    return {pool: queue for pool, queue in state.queues.items() if not state.policy(pool).is_strict}


class _Pass:
    def __init__(
        self,
        state: State,
        events: Sequence[QueueEvent],
        now: Instant,
        lease_s: float,
        looks_max: int,
        *,
        freed: bool,
    ) -> None:
        plan = state.plan
        self.state, self.now, self.lease_s = state, now, lease_s
        self.looks_max = looks_max
        self.began = now.mono if plan.began is None else plan.began
        self.returns_at = self.began + lease_s
        self.events = [*plan.events, *events]
        self.freed = freed
        self.ends = self._ends(plan.ends)
        queued = {name for queue in _queues(state).values() for _, name in queue}
        # A job that a user has changed is planned anew at its new place.
        changed = {event.job for event in self.events if event.cause is MoveCause.SET}
        kept = queued - changed
        bookings = {name: it for name, it in plan.bookings.items() if name in kept}
        self.promises = {
            name: plan.promises.get(name, math.inf)
            for name in sorted(queued)
            if state.jobs[name].starts_by is not None
        }
        expected = {
            name: expected_end(state, state.jobs[name], end, now) for name, end in self.ends.items()
        }
        self._note_late(plan.ends, expected)
        # The wall clock decides nothing, so promises of an earlier process are made anew.
        self.restored = set(self.promises if plan.began is None else plan.restored) & queued
        self.profile = Profile(state, expected, bookings, now, self.returns_at, lease_s)
        self.unsettled = set(bookings)
        self.facts: list[Fact] = []
        self.stopped_at: JobId | None = None
        self.free: dict[str, list[Node]] = {}

    def _ends(self, before: dict[JobId, PlannedEnd]) -> dict[JobId, PlannedEnd]:
        state = self.state
        running = {name for node in state.nodes.values() for name, _ in node.holders}
        return {
            name: planned_end(state, state.jobs[name], before.get(name), self.now)
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
            elif self._is_cancelled_later(job, old):
                event = QueueEvent(MoveCause.SET, job=name)
            elif old.attempt == self.ends[name].attempt and old.limit_s < self.ends[name].limit_s:
                event = QueueEvent(MoveCause.LIMIT, job=name)
            else:
                event = QueueEvent(MoveCause.OVERRUN, job=name)
            if event not in self.events:
                self.events.append(event)
        for node in self.state.nodes.values():
            if node.link is LinkState.SUSPECT and node.answered_at + self.lease_s <= self.now.mono:
                self.events.append(QueueEvent(MoveCause.UNREACHABLE, node=node.name))

    def _is_cancelled_later(self, job: Job, old: PlannedEnd) -> bool:
        """True if a cancellation gave the attempt a longer grace period than its job has."""
        end = self.ends[job.id]
        return end.stage == "stop" and job.cancel is not None and end.grace_s > old.grace_s

    def run(self, *, resume: bool) -> list[Fact]:
        resume_at = self.state.plan.next_job if resume else None
        for pool, queue in _queues(self.state).items():
            jobs = [self.state.jobs[name] for _, name in queue]
            policy = self.state.policy(pool)
            planned = 0
            for job in jobs:
                if self.profile.looks >= self.looks_max:
                    self.stopped_at = self.stopped_at or job.id
                    break
                if resume_at is not None:
                    if job.id != resume_at:
                        planned += job.id in self.profile.bookings
                        continue
                    resume_at = None
                near = planned < policy.horizon or job.id in self.profile.bookings
                planned += self._guarded(job, near=near)
        return self._done()

    def _guarded(self, job: Job, *, near: bool) -> bool:
        """Look at one job. If the placement itself fails, the job is held, so that it stops neither
        the others nor the coordinator. Returns whether the job waits with a booking.
        """
        try:
            if unknown_tasks(self.state, job):
                self._unbook(job)
            elif near:
                return self._plan(job)
            else:
                self._start(job, ())
        except Exception as error:  # noqa: BLE001 - any bug
            text = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
            self._unbook(job)
            self.promises.pop(job.id, None)
            self.facts.append(
                JobHeld(job.id, ITSELF, f"its placement failed, a bug of muster: {text}")
            )
        return False

    def _plan(self, job: Job) -> bool:
        """Start a job, or plan its start; returns whether it waits with a booking."""
        profile, old = self.profile, self.profile.bookings.get(job.id)
        valid = old is not None and self._holds(job, old)
        # A job that is new at its place, or has lost its promised start, goes before those behind
        # it. Others respect the promises made to those.
        lost = old is not None and not valid and job.id in self.promises
        first = self._is_new(job) or lost
        ignored = {job.id} | self._behind(job, promised=first) | self._unsure_elsewhere(job)
        if valid and job.id in self.promises:
            ignored |= self._unknown()
        self.unsettled.discard(job.id)
        if self._start(job, ignored):
            return False
        now = self.now.mono
        if valid and old is not None and now < old.start < math.inf:
            if self.freed and profile.looks < self.looks_max // IMPROVED_SHARE:
                earlier = self._earliest(job, old.start - LATER_S, ignored)
                # A promise is not staked on a node that may not come back.
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

    def _unknown(self) -> set[JobId]:
        """Jobs whose start is unknown; they may not break a promise."""
        return {name for name, it in self.profile.bookings.items() if it.start == math.inf}

    def _is_new(self, job: Job) -> bool:
        """True if the job has come to its place in the queue since the last pass."""
        return any(it.job == job.id and it.cause in _OF_THE_ORDER for it in self.events)

    def _behind(self, job: Job, *, promised: bool) -> set[JobId]:
        """Jobs behind this one in its queue whose bookings have not been looked at yet.

        Without `promised`, only those that have no promise.
        """
        mine, jobs = (-job.spec.priority, job.id), self.state.jobs
        return {
            name
            for name in self.unsettled
            if jobs[name].spec.pool == job.spec.pool
            and (-jobs[name].spec.priority, name) > mine
            and (promised or name not in self.promises)
        }

    def _unsure_elsewhere(self, job: Job) -> set[JobId]:
        """Jobs of other pools whose start nobody knows: it depends on the end of a job without a
        time limit, or on a node that is away.

        They matter because agents of one machine may be in different pools.
        """
        jobs = self.state.jobs
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
        endless = [
            booking.nodes
            for name, booking in self.profile.bookings.items()
            if booking.start == math.inf and name not in ignored
        ]
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
        ignored = {job.id}
        if job.id in self.promises:
            ignored |= self._unknown()
        found, trial = self.profile.judge(job, start, end, ignored, booking.nodes)
        if set(found.gang) != set(booking.nodes):
            return False
        if end != booking.end:
            again = booking_of(trial, job, found.gang, booking.start, end)
            self.profile.book(job.id, again)
        return True

    def _start(self, job: Job, ignored: Iterable[JobId]) -> bool:
        """Place the job now if that delays no booking that counts."""
        ignored = frozenset(ignored)
        pool = job.spec.pool
        if pool not in self.free:
            self.free[pool] = self.profile.free_now(pool)
        if not self.profile.may_start(job.spec, self.free[pool], ignored):
            return False
        now = self.now.mono
        end = now + duration_s(job.spec)
        found, trial = self.profile.judge(job, now, end, ignored)
        if not found.gang:
            return False
        gpus = tuple(given(trial, job.spec, name) for name in found.gang)
        why = why_there(trial, job, found.gang)
        late = self.promises.pop(job.id, math.inf) + LATER_S < now
        if late:
            self.facts.append(StartMoved(job.id, self.now.wall, self._event(job)))
        self.profile.hold(job.id, booking_of(trial, job, found.gang, now, end))
        self.ends[job.id] = begun(job, end)
        self.facts.append(
            AttemptPlaced(job.id, job.next_attempt, found.gang, why, gpus if any(gpus) else ())
        )
        self.unsettled.discard(job.id)
        del self.free[pool]
        return True

    def _earliest(self, job: Job, before: float, ignored: set[JobId]) -> Booking | None:
        """The earliest booking that starts before `before`, or None."""
        length_s = duration_s(job.spec)
        for at in self.profile.starts(job, before, ignored)[:STARTS_TRIED]:
            if at <= self.now.mono:
                continue
            found, trial = self.profile.judge(job, at, at + length_s, ignored)
            if found.gang:
                return booking_of(trial, job, found.gang, at, at + length_s)
        return None

    def _unknown_start(self, job: Job, ignored: set[JobId]) -> Booking | None:
        """The booking of a job that waits for jobs without a time limit.

        Returns None if it waits for something else, such as a drained node: then it holds up
        nobody.
        """
        found, _ = self.profile.judge(job, math.inf, math.inf, ignored)
        if not found.gang:
            return None
        shares = [PlannedShare(name, (), True, 0, 0) for name in sorted(self._fitting(job))]
        return Booking(math.inf, math.inf, tuple(shares))

    def _fitting(self, job: Job) -> set[NodeName]:
        nodes = self.state.nodes.values()
        return {n.name for n in nodes if n.in_service and unfit(job.spec, n) is None}

    def _unbook(self, job: Job) -> None:
        self.unsettled.discard(job.id)
        self.profile.book(job.id, None)

    def _done(self) -> list[Fact]:
        plan, bookings = self.state.plan, self.profile.bookings
        placed = {fact.job for fact in self.facts if isinstance(fact, AttemptPlaced)}
        self._judge_promises(placed)
        kept = self.events[-EVENTS_KEPT:] if self.stopped_at is not None else []
        made = QueuePlan(
            dict(bookings),
            dict(self.promises),
            self.ends,
            tuple(kept),
            self.began,
            tuple(sorted(self.restored)),
            self.stopped_at,
            self._wakes_at(),
            self.lease_s,
        )
        if made != plan:
            self.facts.append(QueuesPlanned(made))
        return self.facts

    def _judge_promises(self, placed: set[JobId]) -> None:
        """Record promises that are new, or later than before."""
        now = self.now
        for name in [*self.promises, *self.profile.bookings]:
            if name in placed or name in self.unsettled:
                continue
            job = self.state.jobs[name]
            booking, promised = self.profile.bookings.get(name), self.promises.get(name)
            start = math.inf if booking is None else booking.start
            if name in self.restored:
                # After a restart, agents connect one after the other.
                there = booking is not None and start < math.inf and self._are_there(booking)
                if not there and now.mono < self.returns_at:
                    continue
                self.restored.discard(name)
                promised = -math.inf
            if promised is None:
                # Nobody knows whether a node that is away comes back.
                if start < math.inf and booking is not None and self._are_there(booking):
                    self.promises[name] = start
                    self.facts.append(StartPromised(name, now.wall + start - now.mono))
            elif start > promised + LATER_S:
                event = self._event(job)
                if start < math.inf:
                    self.promises[name] = start
                    moved = StartMoved(name, now.wall + start - now.mono, event)
                else:
                    del self.promises[name]
                    moved = StartMoved(name, None, event)
                self.facts.append(moved)

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

    def _wakes_at(self) -> float | None:
        """The time of the next pass if nothing happens: a promise is over, or a pass unfinished."""
        if self.stopped_at is not None:
            return self.now.mono
        due = [it.start for it in self.profile.bookings.values() if it.start < math.inf]
        due += [at + LATER_S for at in self.promises.values() if at < math.inf]
        due += [self.returns_at] if self.restored else []
        later = [at for at in due if at > self.now.mono]
        return min(later, default=None)

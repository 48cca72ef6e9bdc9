"""A pass over the queues: which waiting jobs start now, and when the others start at the latest.

The jobs at the head of a queue have bookings: nodes kept for them from a planned start. A job
behind them starts now only if it holds no booked node when its booking begins. Bookings stay from
pass to pass, so a promised start moves later only if an event takes the nodes or the time from its
booking.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import merge
from itertools import compress
from operator import is_not, ne
from typing import Final

from msgspec import structs

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.spec.model import Rdma
from orchestrator.core.facts.jobs import AttemptPlaced, Fact, JobHeld
from orchestrator.core.facts.queue import QueuesPlanned, StartMoved, StartPromised
from orchestrator.core.model.node import ITSELF, LinkState
from orchestrator.core.model.plan import (
    QueueEvent,
    QueuePlan,
    Sights,
)
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.planned_ends import LATER_S
from orchestrator.core.scheduling.planner import Planner, queues_of
from orchestrator.core.scheduling.restore_hold import is_held, unknown_tasks

WORK_MAX: Final = 2_000
"""The work of one pass, in about microseconds. The next pass goes on where it has stopped."""
CHANGED_MAX: Final = 64
"""Number of changed nodes up to which it is worth it to look for jobs that they do not concern."""
EVENTS_KEPT: Final = 512
_ERROR_CHARS: Final = 200
_LAST: Final = (sys.maxsize, JobId(0))
"""Behind every place."""


def schedule(
    state: State,
    events: Sequence[QueueEvent],
    now: Instant,
    lease_s: float,
    *,
    freed: bool = True,
    work_max: int = WORK_MAX,
    anew: AbstractSet[JobId] = frozenset(),
) -> list[Fact]:
    """Return the gangs that start now, the promises made or moved, and the new plan.

    Only pools with backfill take part. Jobs for which nothing has changed since the last pass are
    left out. `lease_s` is the time after which a silent node is given up. `freed`: capacity may
    have become free since the last pass. `anew` are jobs to look at in any case.
    """
    plan = state.plan
    idle = not any(queues_of(state).values()) and not plan.bookings and not plan.promises
    if idle or state.disk_full or is_held(state):
        # No pass looks at what changes meanwhile, such as a node that is removed and comes back.
        return [QueuesPlanned(structs.replace(plan, seen={}))] if plan.seen else []
    return _Pass(state, events, now, lease_s, work_max, anew, freed=freed).run()


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
    names, inventory = {node}, state.nodes[node].inventory
    if inventory.shared_host:
        # Agents of one machine hold each other's GPUs.
        machine = inventory.machine_id
        names |= {it.name for it in state.nodes.values() if it.inventory.machine_id == machine}
    return any(
        not names.isdisjoint(booking.nodes) and (booking.start < ends or ends == math.inf)
        for booking in state.plan.bookings.values()
    )


class _Pass(Planner):
    def __init__(
        self,
        state: State,
        events: Sequence[QueueEvent],
        now: Instant,
        lease_s: float,
        work_max: int,
        anew: AbstractSet[JobId],
        *,
        freed: bool,
    ) -> None:
        super().__init__(state, events, now, lease_s, freed=freed)
        self.work_max = work_max
        self.profile.spent = min(2 * len(state.nodes), work_max // 2)  # until the first job
        self.anew = {it.job for it in self.events if it.job is not None} | anew | state.plan.anew
        self.stopped_at: JobId | None = None
        self.unseen: frozenset[NodeName] = frozenset()
        self.hopeless: set[JobId] = set()
        self.seen = self._sights()
        self.changed = self._changed_nodes()

    def _sights(self) -> Sights:
        """Everything on which the verdicts of a pass on each node depend, besides bookings."""
        ends, profile = self.expected, self.profile
        connected = LinkState.CONNECTED
        return {
            name: (
                # `_changed_nodes` compares these two by themselves.
                node.inventory,
                node.drain,
                link := node.link,
                0.0 if link is connected else profile.node_returns_at(node),
                node.refuses_jobs,
                node.no_torch,
                node.disks,
                # An attempt keeps its share of a node.
                tuple(node.holders),
                tuple([ends[job] for job, _ in node.holders]),
            )
            for name, node in self.state.nodes.items()
        }

    def _changed_nodes(self) -> set[NodeName]:
        """The nodes on which a verdict may have changed since the last pass."""
        plan, seen = self.state.plan, self.seen
        nodes = self.state.nodes
        if not plan.seen or self.state.unknown:
            return set(seen)
        known = plan.memo.nodes
        if any(map(is_not, map(nodes.get, known, known.values()), known.values())):
            return set(seen)  # a node was removed and came back
        changed = set(compress(seen, map(ne, map(plan.seen.get, seen), seen.values())))
        gone = plan.seen.keys() - seen.keys()
        described = gone or any(
            name not in plan.seen or plan.seen[name][0] != seen[name][0] for name in changed
        )
        changed |= gone
        for name, booking in plan.bookings.items():
            if name not in self.profile.bookings:
                changed.update(booking.nodes)
        if any(seen[name][0].shared_host for name in changed - gone):
            return set(seen)  # agents of one machine hold each other's GPUs
        drained = described or any(plan.seen[name][1:2] != seen[name][1:2] for name in changed)
        self.profile.memo = plan.memo.without(
            changed, described=bool(described), drained=bool(drained)
        )
        if plan.next_job is None:
            # Else the jobs before that one wait for the next event, so that a pass comes to an end.
            changed |= plan.touched
        return changed

    def run(self) -> list[Fact]:
        plan = self.state.plan
        resume = self._position(plan.next_job)
        for number, (pool, queue) in enumerate(queues_of(self.state).items()):
            horizon = self.state.policy(pool).horizon
            at = planned = 0
            while at < len(queue) and planned < horizon:
                name, place = queue[at][1], (number, *queue[at])
                nodes = self.changed if place < resume else self.changed | plan.unseen
                if self._is_settled(self.state.jobs[name], nodes):
                    self.unsettled.discard(name)
                    booked = name in self.profile.bookings
                elif self._is_stopped(name):
                    return self._done()
                else:
                    booked = self._guarded(self.state.jobs[name], near=True)
                planned += booked
                if not booked:
                    self.hopeless.add(name)
                at += 1
            for name in self._behind_horizon(pool, queue, at, number, resume):
                if self._is_stopped(name):
                    return self._done()
                job, near = self.state.jobs[name], name in self.profile.bookings
                self.profile.spent += 1
                if near or self.profile.has_room(job):
                    self._guarded(job, near=near)
                else:
                    self.anew.discard(name)
        return self._done()

    def _position(self, name: JobId | None) -> tuple[int, int, int]:
        """The place in all queues at which the last pass has stopped; jobs before it have seen
        what that pass has seen.
        """
        pools = list(queues_of(self.state))
        if name is None or not self._is_queued(name):
            return (0, 0, 0) if self.state.plan.unseen else (len(pools), 0, 0)
        job = self.state.jobs[name]
        return (pools.index(job.spec.pool), -job.spec.priority, name)

    def _is_stopped(self, name: JobId) -> bool:
        """True if the work of this pass is done, and the next one goes on with the job `name`."""
        if self.profile.spent < self.work_max:
            return False
        self.stopped_at = name
        self.unseen = self.state.plan.unseen | self.changed | self.profile.touched
        self.hopeless |= self.state.plan.hopeless
        return True

    def _is_settled(self, job: Job, nodes: AbstractSet[NodeName]) -> bool:
        """True if a look at a job near the head would change nothing, because only `nodes` have
        changed since the last one.
        """
        if job.id in self.anew:
            return False
        booking, touched = self.profile.bookings.get(job.id), self.profile.touched
        if booking is None:
            return not nodes and not touched and job.id in self.state.plan.hopeless
        if booking.start <= self.now.mono:
            return False
        if not nodes and not touched:
            return True
        if booking.start == math.inf or len(nodes) > CHANGED_MAX:
            return False
        if booking.start <= self.now.mono + LATER_S:
            return False  # no start is earlier by so much, but it may start now
        if job.avoid or job.spec.rdma is Rdma.REQUIRED:
            return False  # a changed node decides which of the others it may have
        if any(it.node in nodes or it.node in touched for it in booking.shares):
            return False
        before = booking.start - LATER_S
        ignored = self.profile.bookings.keys() - self.promises.keys()
        if self.profile.has_gap(job.spec, nodes | touched, before, ignored):
            return False
        return not self._may_displace(job)

    def _behind_horizon(
        self,
        pool: str,
        queue: Sequence[tuple[int, JobId]],
        at: int,
        number: int,
        resume: tuple[int, int, int],
    ) -> Iterator[JobId]:
        """The jobs from `at` on in their order, without those for which nothing has changed."""
        touched = self.profile.touched
        first = len(queue)
        if at < first and self._is_free(pool, self.changed | touched):
            first = at
        elif at < first and self._is_free(pool, self.state.plan.unseen):
            rest = resume[1:] if number == resume[0] else (-math.inf, 0)
            first = max(at, bisect_left(queue, rest)) if number >= resume[0] else first
        known = {
            (-self.state.jobs[name].spec.priority, name)
            for name in self.anew | self.profile.bookings.keys()
            if self._is_queued(name) and self.state.jobs[name].spec.pool == pool
        }
        start = queue[at] if at < len(queue) else _LAST
        end = queue[first] if first < len(queue) else _LAST
        between = sorted(it for it in known if start <= it < end)
        yield from (name for _, name in between)
        yield from self._with_room(pool, end, {it for it in known if it >= end})

    def _with_room(
        self, pool: str, place: tuple[int, JobId], known: set[tuple[int, JobId]]
    ) -> Iterator[JobId]:
        """The jobs from a place on in their order: those in `known`, and others that may have room
        now.
        """
        profile, waiting = self.profile, self.state.waiting
        while place < _LAST:
            version = profile.version
            others = waiting.behind(pool, place, profile.longest_s)
            profile.spent += 20
            for found in merge(sorted(it for it in known if it >= place), others):
                if found < place:
                    continue  # it is among both
                place = (found[0], JobId(found[1] + 1))
                yield found[1]
                if profile.version != version:
                    break  # less has room now
            else:
                return

    def _is_free(self, pool: str, nodes: AbstractSet[NodeName]) -> bool:
        """True if something may be free now on one of the nodes."""
        return bool(nodes) and self.profile.is_free_now(pool, nodes)

    def _guarded(self, job: Job, *, near: bool) -> bool:
        """Look at one job. If the placement itself fails, the job is held, so that it stops neither
        the others nor the coordinator. Returns whether the job waits with a booking.
        """
        self.anew.discard(job.id)
        self.profile.spent += 20
        try:
            if unknown_tasks(self.state, job):
                self._unbook(job)
            elif near:
                return self._plan(job)
            else:
                self._start(job, frozenset())
        except Exception as error:  # noqa: BLE001 - any bug
            text = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
            self._unbook(job)
            self.promises.pop(job.id, None)
            self.facts.append(
                JobHeld(job.id, ITSELF, f"its placement failed, a bug of muster: {text}")
            )
        return False

    def _done(self) -> list[Fact]:
        plan, profile, bookings = self.state.plan, self.profile, self.profile.bookings
        placed = {fact.job for fact in self.facts if isinstance(fact, AttemptPlaced)}
        self._judge_promises(placed)
        kept = self.events[-EVENTS_KEPT:] if self.stopped_at is not None else []
        for node in profile.forget_held():
            # They have changed, but still fit the same jobs and are as much in service.
            self.seen[node] = self.seen[node][:2]
        made = QueuePlan(
            dict(bookings),
            dict(self.promises),
            self.ends,
            tuple(kept),
            self.began,
            tuple(sorted(self.restored)),
            self.stopped_at,
            self._wakes_at(placed),
            self.lease_s,
            # Jobs with tasks that nobody knows wait until these are over, wherever they are.
            {} if self.state.unknown else self.seen,
            frozenset(profile.touched | (plan.touched if plan.next_job is not None else set())),
            self.unseen,
            frozenset(self.hopeless - placed),
            frozenset(self.anew - placed) if self.stopped_at is not None else frozenset(),
            profile.results(),
        )
        if structs.replace(made, memo=plan.memo) != plan:
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

    def _has_moved_later(self, name: JobId) -> bool:
        """True if the job starts later than planned by the last pass, on which no fact reports."""
        old, new = self.state.plan.bookings.get(name), self.profile.bookings.get(name)
        return old is not None and (new is None or new.start > old.start + LATER_S)

    def _wakes_at(self, placed: AbstractSet[JobId]) -> float | None:
        """The time of the next pass if nothing happens: a promise or an end is due, or it goes on.

        A gang that was placed makes another pass due, which a long one leaves to a later turn.
        """
        if self.stopped_at is not None or (placed and self.profile.spent > self.work_max // 2):
            return self.now.mono
        if any(map(self._has_moved_later, self.restored)):
            return self.now.mono  # it has left nodes to jobs before it
        due = [it.start for it in self.profile.bookings.values() if it.start < math.inf]
        due += [at + LATER_S for at in self.promises.values() if at < math.inf]
        nodes = self.state.nodes.values()
        early = self.returns_at > self.now.mono
        if self.restored or (early and any(it.link is LinkState.OFFLINE for it in nodes)):
            due.append(self.returns_at)
        if due:
            # An attempt that is late moves bookings, and frees other nodes that they have.
            due += [at for at in self.expected.values() if at < math.inf]
        later = [at for at in due if at > self.now.mono]
        return min(later, default=None)

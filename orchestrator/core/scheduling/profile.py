"""Profile of the future: which nodes a job could have when.

The placement code itself judges a job at a later time, on copies of the nodes with the holders of
that time. The profile only proposes the times that are worth a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, assert_never

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.observations.gpus import divides
from muster.spec.model import JobSpec, Placement, Rdma
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import Booking, Size, size_of
from orchestrator.core.model.state import Job, Node, Share, State
from orchestrator.core.scheduling.placement import busy, choose_gang, consider, unfit, usable
from orchestrator.core.scheduling.planned_ends import duration_s, slipped
from orchestrator.core.scheduling.timeline import (
    NEVER,
    Booked,
    Fitting,
    Held,
    Line,
    Memo,
    Spans,
    Timeline,
    shares_at_peak,
    spans_of_all,
    spans_of_parts,
)

_ANYWHERE: Final = Placement()
_SHARED_HOST: Final = attrgetter("inventory.shared_host")
_LINK: Final = attrgetter("link")


class Profile:
    """The nodes over time. `bookings` is shared with the caller, who changes it by `book`.

    `touched` are the nodes whose bookings have changed in this pass; each change has a new
    `version`. `spent` counts the work, in about the microseconds that it takes.
    """

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
        self.memo = Memo({}, {}, {}, {}, {}, {}, {}, {}, {})
        self.bookings = bookings
        self.spent = self.version = 0
        self.touched: set[NodeName] = set()
        self.endless = {name for name, it in bookings.items() if it.start == math.inf}
        self._ends = ends
        self._returns_at, self._lease_s = returns_at, lease_s
        self._booked: Booked = {}
        self._held: Booked = {}
        self._holders: dict[NodeName, list[Held]] = {}
        self._divided: dict[NodeName, bool] = {}
        self._fitting: dict[int, Fitting] = {}
        self._without: tuple[object, Timeline] = (None, NEVER)
        self._free: dict[NodeName, bool] = {}
        self._gaps: dict[object, tuple[object, set[tuple[float, float]]]] = {}
        self._until: dict[Size, float] = {}
        self._kept: dict[object, tuple[list[Node], list[Node]]] = {}
        # Agents of one machine hold each other's GPUs.
        nodes = state.nodes.values()
        self._mixed = any(map(_SHARED_HOST, nodes))
        self._some_away = list(map(_LINK, nodes)).count(LinkState.CONNECTED) < len(nodes)
        plan = state.plan
        if plan.memo is None:
            for name, booking in bookings.items():
                self._add(self._booked, name, booking)
        else:
            self._booked.update(plan.memo.booked)
            for name in plan.bookings.keys() - bookings.keys():
                self._remove(name, plan.bookings[name])

    @property
    def is_simple(self) -> bool:
        """True if each machine has one agent, so that a verdict on a node depends on no other."""
        return not self._mixed

    def book(self, job: JobId, booking: Booking | None) -> None:
        """Replace the booking of a job; None removes it."""
        old = self.bookings.pop(job, None)
        if old is not None and old == booking:
            self.bookings[job] = old
            return
        if old is not None:
            self.endless.discard(job)
            self._remove(job, old)
            self._touch(old)
        if booking is not None:
            self.bookings[job] = booking
            if booking.start == math.inf:
                self.endless.add(job)
            self._add(self._booked, job, booking)
            self._touch(booking)

    def hold(self, job: JobId, booking: Booking) -> None:
        """Let a job that is placed in this pass hold its nodes."""
        self.book(job, None)
        self._add(self._held, job, booking)
        self._touch(booking)
        self._free = {}

    def results(self) -> Memo:
        """Return what the next pass may use of this one."""
        return self.memo._replace(booked=self._booked, nodes=self.state.nodes.copy())

    def forget_held(self) -> list[NodeName]:
        """Return the nodes of the gangs that were placed in this pass, and forget what depends on
        these: they may have ended before the next pass.
        """
        for name in self._held:
            self._changed(name)
        return list(self._held)

    def _touch(self, booking: Booking) -> None:
        self.version += 1
        self._until = {}
        for share in booking.shares:
            self.touched.add(share.node)
            self._changed(share.node)

    def _changed(self, name: NodeName) -> None:
        self.memo.gaps.pop(name, None)
        for line in self.memo.lines.values():
            line.stale.add(name)

    @staticmethod
    def _add(table: Booked, job: JobId, booking: Booking) -> None:
        for it in booking.shares:
            share = Share(it.gpus, it.whole, it.cpus, it.memory_bytes)
            held = Held(job, booking.start, booking.end, share)
            table[it.node] = {**table.get(it.node, _NONE), job: held}

    def _remove(self, job: JobId, booking: Booking) -> None:
        for share in booking.shares:
            booked = self._booked.get(share.node, _NONE)
            self._booked[share.node] = {name: it for name, it in booked.items() if name != job}

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
        holders = self._holders.get(node.name)
        if holders is None:
            holders = self._holders[node.name] = [
                Held(job, -math.inf, self._ends[job], share)
                for (job, _), share in node.holders.items()
            ]
        yield from holders
        if node.name in self._held:
            yield from self._held[node.name].values()
        if node.name in self._booked:
            for held in self._booked[node.name].values():
                if held.job not in ignored:
                    yield held

    def fitting(self, spec: JobSpec) -> list[Node]:
        """The nodes that fit the job."""
        return self._fits(spec).nodes

    def _fits(self, spec: JobSpec) -> Fitting:
        plain = spec.placement == _ANYWHERE and spec.rdma is not Rdma.REQUIRED
        table: dict[Any, Fitting] = self.memo.fitting if plain else self._fitting
        key = (spec.pool, spec.resources) if plain else id(spec)
        found = table.get(key)
        if found is None:
            self.spent += len(self.state.nodes)
            nodes = [node for node in self.state.nodes.values() if unfit(spec, node) is None]
            found = table[key] = Fitting(nodes, self._bits(node.name for node in nodes))
        return found

    def _bits(self, names: Iterable[NodeName]) -> int:
        """The bits of these nodes in all timelines."""
        known = self.memo.bits
        if not known:
            known.update((name, 1 << at) for at, name in enumerate(self.state.nodes))
        found = 0
        for name in names:
            found |= known.get(name, 0)
        return found

    def _in_service(self, pool: str) -> int:
        """The bits of the nodes of a pool that are not drained."""
        found = self.memo.served.get(pool)
        if found is None:
            nodes = self.state.nodes.values()
            served = [it.name for it in nodes if it.drain is None and it.inventory.pool == pool]
            found = self.memo.served[pool] = self._bits(served)
        return found

    def _timeline(self, gpus: int | None, ignored: AbstractSet[JobId]) -> Timeline:
        """The times of room for `gpus` on all nodes, None for whole nodes. Bookings of jobs in
        `ignored` do not count.

        A node that is away has none before it returns.
        """
        key, lines = gpus, self.memo.lines
        line = lines.get(key) or Line(NEVER, set(self.state.nodes))
        if line.stale:
            known = self._changed_line(line.known, gpus, line.stale, frozenset())
            line = lines[key] = Line(known, set())
        without = self.bookings.keys() & ignored
        if not without:
            return line.known
        again = (key, self.version, without)
        if self._without[0] != again:
            names = {name for job in without for name in self.bookings[job].nodes}
            known = self._changed_line(line.known, gpus, names, without)
            self._without = (again, known)
        return self._without[1]

    def _changed_line(
        self,
        line: Timeline,
        gpus: int | None,
        names: AbstractSet[NodeName],
        ignored: AbstractSet[JobId],
    ) -> Timeline:
        """The timeline with the room that these nodes have now."""
        room: dict[Spans, int] = {}
        bits = self._bits(names)
        for name in names:
            node = self.state.nodes.get(name)
            if node is None:
                continue
            spans = self._room_there(gpus, node, ignored)
            room[spans] = room.get(spans, 0) | self.memo.bits.get(name, 0)
        self.spent += len(line.times) // 8 + len(names) // 2 + 8 * len(room)
        return line.replaced(bits, room)

    def judge(
        self,
        job: Job,
        start: float,
        end: float,
        ignored: AbstractSet[JobId],
        only: Sequence[NodeName] | None = None,
    ) -> tuple[tuple[NodeName, ...], State]:
        """Let the placement choose a gang for a job that holds its nodes from `start` to `end`.

        Returns the gang, which is empty if there is none, and the hypothetical state with the
        holders of that time. Bookings of the jobs in `ignored` do not count. `only` restricts the
        nodes.
        """
        if self._mixed:
            return self._judge_all(job, start, end, ignored, only)
        spec = job.spec
        fitting = self.fitting(spec)
        if only is not None:
            known = [self.state.nodes[name] for name in only if name in self.state.nodes]
            able = self._fits(spec).bits
            fitting = [node for node in known if able & self.memo.bits[node.name]]
        if self._some_away:
            fitting = [self._at(node, start) for node in fitting]
        kept = self._usable(job, fitting, are_all=only is None)
        room = (
            self._timeline(spec.resources.gpu, ignored).free(-1, start, end)
            if start < math.inf
            else -1
        )
        bits = self.memo.bits
        nodes = {
            node.name: self._copy(node, start, end, ignored)
            for node in fitting
            if bits.get(node.name, 0) & room
            and node.link is LinkState.CONNECTED
            and node.drain is None
        }
        self.spent += 60 + len(fitting) + 12 * len(nodes)
        trial = State(networks=self.state.networks, nodes=nodes, unknown=self.state.unknown)
        free = [node for node in nodes.values() if busy(trial, spec, node) is None]
        if kept is not fitting:
            names = {node.name for node in kept}
            free = [node for node in free if node.name in names]
        if len(free) < spec.nodes:
            return (), trial
        return choose_gang(trial, job, kept, free)[0] or (), trial

    def _usable(self, job: Job, fitting: list[Node], *, are_all: bool) -> list[Node]:
        """The same as `usable`, once in a pass for all jobs with the same fitting nodes."""
        spec = job.spec
        if not are_all or self._some_away or job.avoid:
            return usable(job, fitting, self.state.networks)
        key = (id(fitting), spec.nodes, spec.placement.shared_label)
        known = self._kept.get(key)
        if known is None or known[0] is not fitting:
            known = self._kept[key] = (fitting, usable(job, fitting, self.state.networks))
        return known[1]

    def _at(self, node: Node, start: float) -> Node:
        """The node with its link at a later time."""
        if node.link is LinkState.CONNECTED:
            return node
        returns_at = self.node_returns_at(node)
        if returns_at <= start and returns_at < math.inf:
            return replace(node, link=LinkState.CONNECTED)
        return node

    def _judge_all(
        self,
        job: Job,
        start: float,
        end: float,
        ignored: AbstractSet[JobId],
        only: Sequence[NodeName] | None,
    ) -> tuple[tuple[NodeName, ...], State]:
        """The same as `judge`, for machines with several agents."""
        names = self.state.nodes if only is None else only
        known = [self.state.nodes[name] for name in names if name in self.state.nodes]
        nodes = {node.name: self._copy(node, start, end, ignored) for node in known}
        if only is not None:
            # Other agents of the same machines hold GPUs of it, and are no candidates here.
            machines = {node.inventory.machine_id for node in known}
            for node in self.state.nodes.values():
                if node.inventory.machine_id in machines and node.name not in nodes:
                    copy = self._copy(node, start, end, ignored)
                    nodes[node.name] = replace(copy, link=LinkState.LOST)
        self.spent += 10 * len(nodes)
        trial = State(networks=self.state.networks, nodes=nodes, unknown=self.state.unknown)
        return consider(trial, job).gang, trial

    def _copy(self, node: Node, start: float, end: float, ignored: AbstractSet[JobId]) -> Node:
        meets = [it for it in self.holds(node, ignored) if it.end > start]
        held = [it for it in meets if it.start < end or end == math.inf]
        shares = shares_at_peak(held, start)
        holders = {(it.job, 0): share for it, share in zip(held, shares, strict=True)}
        link = self._at(node, start).link
        copy = self.memo.copies.get(node.name)
        if copy is None:
            copy = self.memo.copies[node.name] = replace(node)
        copy.holders, copy.link = holders, link
        return copy

    def is_free_now(self, pool: str, names: AbstractSet[NodeName]) -> bool:
        """True if something may be free now on one of these nodes of the pool."""
        nodes = self.state.nodes
        for name in names & nodes.keys():
            found = self._free.get(name)
            if found is None:
                self.spent += 1
                found = self._free[name] = self._is_free_now(nodes[name])
            if found and nodes[name].inventory.pool == pool:
                return True
        return False

    def _is_free_now(self, node: Node) -> bool:
        if node.link is not LinkState.CONNECTED or node.drain is not None:
            return False
        held = self._held.get(node.name, _NONE).values()
        return not any(it.whole for it in (*node.holders.values(), *(one.share for one in held)))

    def has_room(self, job: Job) -> bool:
        """True if some nodes may have room for a job of this size now; False is certain."""
        spec = job.spec
        known = self.memo.sizes.get(job.id)
        if known is None or known[0] is not spec:
            known = self.memo.sizes[job.id] = (spec, size_of(spec), duration_s(spec))
        _, size, length_s = known
        return self.now + length_s <= self._room_until(size)

    def longest_s(self, size: Size) -> float:
        """The longest that a job of this size may hold its nodes from now on."""
        return self._room_until(size) - self.now

    def _room_until(self, size: Size) -> float:
        until = self._until.get(size)
        if until is None:
            pool, gpus, wanted = size
            line, nodes = self._timeline(gpus, frozenset()), self._in_service(pool)
            until = self._until[size] = line.room_until(nodes, wanted, self.now)
            self.spent += 10
        return until

    def may_begin(self, spec: JobSpec, ignored: AbstractSet[JobId]) -> bool:
        """True if enough nodes may have room for the job from now on; False is certain."""
        nodes = self._fits(spec).bits & self._in_service(spec.pool)
        line = self._timeline(spec.resources.gpu, ignored)
        end = self.now + duration_s(spec)
        self.spent += 5
        return line.free(nodes, self.now, end).bit_count() >= spec.nodes

    def has_idle(self, spec: JobSpec, some: AbstractSet[NodeName]) -> bool:
        """True if enough nodes are idle at this moment, one of `some` among them."""
        idle = self._idle(spec)
        return idle.bit_count() >= spec.nodes and bool(idle & self._bits(some))

    def booked_idle(self, spec: JobSpec) -> set[JobId]:
        """The jobs that have booked a node that is idle at this moment."""
        idle, bits = self._idle(spec), self.memo.bits
        nodes = (node.name for node in self.fitting(spec) if bits.get(node.name, 0) & idle)
        self.spent += 50
        return {job for name in nodes for job in self._booked.get(name, _NONE)}

    def _idle(self, spec: JobSpec) -> int:
        """The bits of the nodes that have room now, even if not for as long as the job may run."""
        nodes = self._fits(spec).bits & self._in_service(spec.pool)
        line = self._timeline(spec.resources.gpu, frozenset())
        return line.free(nodes, self.now, math.nextafter(self.now, math.inf))

    def has_gap(
        self, spec: JobSpec, on: AbstractSet[NodeName], before: float, ignored: AbstractSet[JobId]
    ) -> bool:
        """True if the job may use one of the nodes `on` from a time before `before`."""
        gpus, again = spec.resources.gpu, (self.version, on, ignored)
        key = (spec.pool, gpus)
        known = self._gaps.get(key)
        if known is None or known[0] != again:
            nodes = [self.state.nodes[name] for name in on if name in self.state.nodes]
            served = [it for it in nodes if it.drain is None and it.inventory.pool == spec.pool]
            gaps = {gap for node in served for gap in self._room_there(gpus, node, ignored)}
            known = self._gaps[key] = (again, gaps)
            self.spent += 2 * len(on)
        length_s = duration_s(spec)
        self.spent += 5
        return any(
            (at := max(begin, self.now)) < before and not end - length_s < at
            for begin, end in known[1]
        )

    def starts(self, job: Job, before: float, ignored: AbstractSet[JobId]) -> Iterator[float]:
        """Times before `before` at which a job may fit, the earliest first.

        Enough nodes are free then for as long as the job may run. Whether they are a gang is left
        to `judge`.
        """
        spec, length_s = job.spec, duration_s(job.spec)
        nodes = self._fits(spec).bits & self._in_service(spec.pool)
        line = self._timeline(spec.resources.gpu, ignored)
        self.spent += len(line.times) // 4
        return line.starts(nodes, spec.nodes, length_s, self.now, before)

    def _room(self, gpus: int | None, node: Node, ignored: AbstractSet[JobId]) -> Spans:
        """The spans of time in which the node may have room for `gpus`."""
        known = self.memo.gaps.get(node.name)
        if known is None:
            known = self.memo.gaps[node.name] = {}
        key: object = gpus
        booked = self._booked.get(node.name)
        if booked and not ignored.isdisjoint(booked):
            key = (key, frozenset(booked.keys() & ignored))
        found = known.get(key)
        if found is None:
            held = list(self.holds(node, ignored))
            self.spent += 3 + 2 * len(held)
            if held and gpus and self._divides(node):
                found = spans_of_parts(node, gpus, held, self.now)
            else:
                found = spans_of_all(held, self.now)
            known[key] = found
        return found

    def _room_there(self, gpus: int | None, node: Node, ignored: AbstractSet[JobId]) -> Spans:
        """The same as `_room`. A node that is away has no room before it returns."""
        spans = self._room(gpus, node, ignored)
        if node.link is LinkState.CONNECTED:
            return spans
        returns = self.node_returns_at(node)
        return tuple((max(it, returns), end) for it, end in spans if end > returns)

    def _divides(self, node: Node) -> bool:
        found = self._divided.get(node.name)
        if found is None:
            found = self._divided[node.name] = divides(node.inventory.devices)
        return found


_NONE: Final[dict[JobId, Held]] = {}

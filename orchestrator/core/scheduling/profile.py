"""Profile of the future: which nodes a job could have when.

The placement code itself judges a job at a later time, on copies of the nodes with the holders of
that time. The profile only proposes the times that are worth a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, NamedTuple, assert_never

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.observations.gpus import divides
from muster.spec.model import JobSpec, Placement, Rdma
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import Booking, PlannedShare, Sights
from orchestrator.core.model.state import Job, Node, Share, State
from orchestrator.core.scheduling.gpus import given, share_of
from orchestrator.core.scheduling.placement import busy, choose_gang, consider, unfit, usable
from orchestrator.core.scheduling.planned_ends import duration_s, slipped

_ANYWHERE: Final = Placement()

Gaps = list[tuple[float, float]]


class Held(NamedTuple):
    """A share of a node that is held from `start` to `end`."""

    job: JobId
    start: float
    end: float
    share: Share


class Memo(NamedTuple):
    """Results of the last pass that hold as long as the nodes and their bookings stay the same."""

    gaps: dict[NodeName, dict[object, Gaps]]
    copies: dict[NodeName, Node]
    fitting: dict[object, list[Node]]

    def without(self, nodes: AbstractSet[NodeName], *, described: bool) -> Memo:
        """A copy without these nodes. `described`: the inventory of one has changed."""
        gaps = {name: it for name, it in self.gaps.items() if name not in nodes}
        copies = {name: it for name, it in self.copies.items() if name not in nodes}
        return Memo(gaps, copies, {} if described else dict(self.fitting))


class Profile:
    """The nodes over time. `bookings` is shared with the caller, who changes it by `book`.

    `touched` are the nodes whose bookings have changed in this pass; each change has a new
    `version`. `spent` counts the work, in
    about the microseconds that it takes.
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
        self.memo = Memo({}, {}, {})
        self.bookings = bookings
        self.spent = self.version = 0
        self.touched: set[NodeName] = set()
        self.endless = {name for name, it in bookings.items() if it.start == math.inf}
        self._ends = ends
        self._returns_at, self._lease_s = returns_at, lease_s
        self._booked: dict[NodeName, dict[JobId, Held]] = {}
        self._held: dict[NodeName, dict[JobId, Held]] = {}
        self._holders: dict[NodeName, list[Held]] = {}
        self._divided: dict[NodeName, bool] = {}
        self._fitting: dict[int, list[Node]] = {}
        self._free: dict[str, list[Node]] = {}
        # Agents of one machine hold each other's GPUs.
        nodes = state.nodes.values()
        self._mixed = any(node.inventory.shared_host for node in nodes)
        self._some_away = any(node.link is not LinkState.CONNECTED for node in nodes)
        for name, booking in bookings.items():
            self._add(self._booked, name, booking)

    def book(self, job: JobId, booking: Booking | None) -> None:
        """Replace the booking of a job; None removes it."""
        old = self.bookings.pop(job, None)
        if old is not None and old == booking:
            self.bookings[job] = old
            return
        if old is not None:
            self.endless.discard(job)
            for share in old.shares:
                self._booked[share.node].pop(job, None)
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
        self._free = {pool: self._still_free(free) for pool, free in self._free.items()}

    def forget_held(self) -> list[NodeName]:
        """Return the nodes of the gangs that were placed in this pass, and forget what depends on
        these: they may have ended before the next pass.
        """
        for name in self._held:
            self.memo.gaps.pop(name, None)
        return list(self._held)

    def _touch(self, booking: Booking) -> None:
        self.version += 1
        for share in booking.shares:
            self.touched.add(share.node)
            self.memo.gaps.pop(share.node, None)

    @staticmethod
    def _add(table: dict[NodeName, dict[JobId, Held]], job: JobId, booking: Booking) -> None:
        for it in booking.shares:
            share = Share(it.gpus, it.whole, it.cpus, it.memory_bytes)
            held = Held(job, booking.start, booking.end, share)
            table.setdefault(it.node, {})[job] = held

    def sights(self) -> Sights:
        """Everything on which the verdicts of a pass on each node depend, besides bookings."""
        ends = self._ends
        return {
            name: (
                node.inventory,
                node.link,
                0.0 if node.link is LinkState.CONNECTED else self.node_returns_at(node),
                node.drain,
                node.refuses_jobs,
                node.disks,
                [(*it, ends[it[0]]) for it in node.holders],
                list(node.holders.values()),
            )
            for name, node in self.state.nodes.items()
        }

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
        plain = spec.placement == _ANYWHERE and spec.rdma is not Rdma.REQUIRED
        table: dict[Any, list[Node]] = self.memo.fitting if plain else self._fitting
        key = (spec.pool, spec.resources) if plain else id(spec)
        found = table.get(key)
        if found is None:
            self.spent += len(self.state.nodes)
            found = [node for node in self.state.nodes.values() if unfit(spec, node) is None]
            table[key] = found
        return found

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
            fitting = [node for node in known if unfit(spec, node) is None]
        if self._some_away:
            fitting = [self._at(node, start) for node in fitting]
        kept = usable(job, fitting, self.state.networks)
        nodes = {
            node.name: self._copy(node, start, end, ignored)
            for node in fitting
            if node.link is LinkState.CONNECTED
            and node.drain is None
            and self._may_have_room(spec, node, start, end, ignored)
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

    def _at(self, node: Node, start: float) -> Node:
        """The node with its link at a later time."""
        if node.link is LinkState.CONNECTED:
            return node
        returns_at = self.node_returns_at(node)
        if returns_at <= start and returns_at < math.inf:
            return replace(node, link=LinkState.CONNECTED)
        return node

    def _may_have_room(
        self, spec: JobSpec, node: Node, start: float, end: float, ignored: AbstractSet[JobId]
    ) -> bool:
        """True if the node may have room all the time; False is certain."""
        if start == math.inf:
            return True
        for begin, stop in self._room(spec, node, ignored):
            if begin > start:
                break
            if stop >= end:
                return True
        return False

    def _judge_all(
        self,
        job: Job,
        start: float,
        end: float,
        ignored: AbstractSet[JobId],
        only: Sequence[NodeName] | None,
    ) -> tuple[tuple[NodeName, ...], State]:
        """As `judge`, for machines with several agents."""
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
        holders = {
            (it.job, 0): it.share
            for it in self.holds(node, ignored)
            if it.end > start and (it.start < end or end == math.inf)
        }
        link = self._at(node, start).link
        copy = self.memo.copies.get(node.name)
        if copy is None:
            copy = self.memo.copies[node.name] = replace(node)
        copy.holders, copy.link = holders, link
        return copy

    def free_now(self, pool: str) -> list[Node]:
        """The nodes of a pool of which something may be free now."""
        found = self._free.get(pool)
        if found is None:
            self.spent += len(self.state.nodes) // 2
            found = [
                node
                for node in self.state.nodes.values()
                if node.link is LinkState.CONNECTED
                and node.drain is None
                and node.inventory.pool == pool
                and (not node.holders or not any(it.whole for it in node.holders.values()))
            ]
            found = self._free[pool] = self._still_free(found)
        return found

    def _still_free(self, free: list[Node]) -> list[Node]:
        held = self._held
        return [
            node
            for node in free
            if node.name not in held or not any(it.share.whole for it in held[node.name].values())
        ]

    def may_start(self, spec: JobSpec, free: list[Node], ignored: AbstractSet[JobId]) -> bool:
        """True if enough of the nodes in `free` may suit a job that starts now.

        A quick check: False is certain.
        """
        wanted, end = spec.nodes, self.now + duration_s(spec)
        parts = bool(spec.resources.gpu)
        left = len(free)
        if left < wanted:
            return False
        self.spent += left // 4
        for node in free:
            if not parts and (node.holders or node.name in self._held):
                left -= 1
            else:
                for it in self._booked.get(node.name, _NONE).values():
                    blocks = it.share.whole or not parts
                    if blocks and it.job not in ignored and (it.start < end or end == math.inf):
                        left -= 1
                        break
            if left < wanted:
                return False
        return True

    def has_gap(
        self, spec: JobSpec, names: Iterable[NodeName], before: float, ignored: AbstractSet[JobId]
    ) -> bool:
        """True if the job may use one of these nodes from a time before `before`."""
        length_s = duration_s(spec)
        for name in names:
            node = self.state.nodes.get(name)
            if node is None or node.drain is not None or node.inventory.pool != spec.pool:
                continue
            self.spent += 1
            for _ in self._spans(spec, node, length_s, before, ignored):
                return True
        return False

    def _spans(
        self, spec: JobSpec, node: Node, length_s: float, before: float, ignored: AbstractSet[JobId]
    ) -> Iterator[tuple[float, float]]:
        """The first and last start before `before` in each gap of the node."""
        returns = self.now if node.link is LinkState.CONNECTED else self.node_returns_at(node)
        for begin, end in self._room(spec, node, ignored):
            first = max(begin, returns)
            if first >= before:
                return
            last = end - length_s if end < math.inf else math.inf
            if first <= last:
                yield first, last

    def starts(self, job: Job, before: float, ignored: AbstractSet[JobId]) -> list[float]:
        """Times before `before` at which a job may fit, the earliest first.

        Enough nodes are free then for as long as the job may run. Whether they are a gang is left
        to `judge`.
        """
        spec, length_s = job.spec, duration_s(job.spec)
        changes: list[tuple[float, int]] = []
        fitting = self.fitting(spec)
        for node in fitting:
            if node.drain is None:
                for first, last in self._spans(spec, node, length_s, before, ignored):
                    changes.append((first, -1))
                    changes.append((last, 1))
        self.spent += len(fitting) + len(changes)
        changes.sort()
        free = 0
        found: list[float] = []
        for at, change in changes:
            free -= change
            if change < 0 and free >= spec.nodes and (not found or found[-1] != at):
                found.append(at)
        return found

    def _room(self, spec: JobSpec, node: Node, ignored: AbstractSet[JobId]) -> Gaps:
        """The spans of time in which the node may have room for the job."""
        known = self.memo.gaps.get(node.name)
        if known is None:
            known = self.memo.gaps[node.name] = {}
        key: object = spec.resources.gpu
        booked = self._booked.get(node.name)
        if booked and not ignored.isdisjoint(booked):
            key = (key, frozenset(booked.keys() & ignored))
        found = known.get(key)
        if found is None:
            held = list(self.holds(node, ignored))
            self.spent += 3 + 2 * len(held)
            if held and spec.resources.gpu and self._divides(node):
                found = _gaps_of_parts(node, spec.resources.gpu, held, self.now)
            else:
                found = _gaps_of_all(held, self.now)
            known[key] = found
        return found

    def _divides(self, node: Node) -> bool:
        found = self._divided.get(node.name)
        if found is None:
            found = self._divided[node.name] = divides(node.inventory.devices)
        return found


def _gaps_of_all(held: list[Held], now: float) -> Gaps:
    """The spans of time in which nothing holds any part of a node."""
    found: Gaps = []
    for start, end in sorted((it.start, it.end) for it in held):
        if start == math.inf:
            # Those whose start is unknown hold the node from then on.
            return [*found, (now, _LAST)] if now < math.inf else found
        if start > now:
            found.append((now, start))
        now = max(now, end)
    return [*found, (now, math.inf)] if now < math.inf else found


def _gaps_of_parts(node: Node, gpus: int, held: list[Held], now: float) -> Gaps:
    """The spans of time in which `gpus` devices of the node are free."""
    taken = {device.uuid: 0 for device in node.inventory.devices}
    changes = [(now, 0, Share(whole=False)), *((max(it.start, now), 1, it.share) for it in held)]
    changes += [(it.end, -1, it.share) for it in held]
    changes.sort(key=lambda it: it[0])
    found: Gaps = []
    begin: float | None = None
    whole, left = 0, len(node.inventory.devices)
    for place, (at, change, share) in enumerate(changes):
        if at == math.inf:
            break
        whole += change * share.whole
        for uuid in share.gpus:
            if uuid in taken:
                left -= (taken[uuid] == 0) - (taken[uuid] + change == 0)
                taken[uuid] += change
        if place + 1 < len(changes) and changes[place + 1][0] == at:
            continue
        if not whole and left >= gpus:
            begin = at if begin is None else begin
        elif begin is not None:
            found.append((begin, at))
            begin = None
    if begin is not None:
        # Those whose start is unknown hold the node from then on.
        found.append((begin, math.inf if all(it.start < math.inf for it in held) else _LAST))
    return found


_LAST: Final = 1e300
"""Before every unknown time, and after every known one."""
_NONE: Final[dict[JobId, Held]] = {}


def booking_of(
    trial: State, job: Job, gang: Sequence[NodeName], start: float, end: float
) -> Booking:
    """The booking of a gang that the placement has chosen in a hypothetical state."""
    shares = [(name, share_of(job.spec, given(trial, job.spec, name))) for name in gang]
    return Booking(start, end, tuple(PlannedShare(name, *share) for name, share in shares))

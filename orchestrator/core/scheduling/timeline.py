"""Timeline: which nodes have room from when to when, with one bit of an integer for each node.

So a question about all nodes takes a few operations on integers, not a loop over the nodes. `Memo`
keeps what a pass has found for the next one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import compress
from operator import ne
from typing import Final, NamedTuple

from muster.protocol.ids import JobId, NodeName
from muster.spec.model import JobSpec
from orchestrator.core.model.plan import Size
from orchestrator.core.model.state import Node, Share

Spans = tuple[tuple[float, float], ...]
"""Spans of time with room, in order and apart from each other."""


class Held(NamedTuple):
    """A share of a node that is held from `start` to `end`."""

    job: JobId
    start: float
    end: float
    share: Share


class Timeline(NamedTuple):
    """`masks[i]` has the bits of the nodes with room from `times[i]` until the next of `times`."""

    times: tuple[float, ...]
    masks: tuple[int, ...]

    def replaced(self, nodes: int, room: Mapping[Spans, int]) -> Timeline:
        """A copy in which the bits of `nodes` have room only in the spans of `room`."""
        # Bits that begin or end to have room at a time. In between, the bits of `nodes` are `on`.
        flips: dict[float, int] = {}
        for spans, bits in room.items():
            for begin, end in spans:
                flips[begin] = flips.get(begin, 0) ^ bits
                if end < math.inf:
                    flips[end] = flips.get(end, 0) ^ bits
        times, masks, others = list(self.times), list(self.masks), ~nodes
        for at in flips:
            _cut(times, masks, at)
        found: list[int] = []
        on = 0
        for at in sorted(flips):
            place = bisect_left(times, at, len(found))
            found += [mask & others | on for mask in masks[len(found) : place]]
            on ^= flips[at]
        found += [mask & others | on for mask in masks[len(found) :]]
        # Equal neighbours are one.
        differs = [True, *map(ne, found, found[1:])]
        return Timeline(tuple(compress(times, differs)), tuple(compress(found, differs)))

    def free(self, nodes: int, start: float, end: float) -> int:
        """Return those of `nodes` with room all the time from `start` to `end`."""
        times, masks = self
        place = bisect_right(times, start)
        found = nodes & masks[place - 1]
        while found and place < len(times) and times[place] < end:
            found &= masks[place]
            place += 1
        return found

    def room_until(self, nodes: int, wanted: int, now: float) -> float:
        """The latest end of a job that has room on `wanted` of `nodes` from now on."""
        times, masks = self
        place = bisect_right(times, now)
        found = nodes & masks[place - 1]
        if found.bit_count() < wanted:
            return -math.inf
        for at in range(place, len(times)):
            found &= masks[at]
            if found.bit_count() < wanted:
                return times[at]
        return math.inf

    def starts(
        self, nodes: int, wanted: int, length_s: float, now: float, before: float
    ) -> Iterator[float]:
        """Times from `now` until `before` from which `wanted` of `nodes` have room for `length_s`.

        Only those at which one of them begins to have room, the earliest first.
        """
        times, masks = self
        count = len(times)
        first = bisect_right(times, now) - 1
        # Nodes with room from `place` to `middle`, for each place; and from `middle` to `stop`.
        ahead: list[int] = []
        middle, stop, after = first, first, -1
        for place in range(first, count):
            at = now if place == first else times[place]
            if at >= before:
                return
            while stop < count and (stop <= place or times[stop] - length_s < at):
                after &= masks[stop]
                stop += 1
            if middle <= place:
                ahead, all_of = [], -1
                for back in range(stop - 1, place - 1, -1):
                    all_of &= masks[back]
                    ahead.append(all_of)
                middle, after = stop, -1
            found = ahead.pop() & after & nodes
            if found.bit_count() >= wanted and (place == first or found & ~masks[place - 1]):
                yield at


def _cut(times: list[float], masks: list[int], at: float) -> int:
    """The place that begins at this time; a new one if there is none."""
    place = bisect_left(times, at)
    if place == len(times) or times[place] != at:
        times.insert(place, at)
        masks.insert(place, masks[place - 1])
    return place


NEVER: Final = Timeline((-math.inf,), (0,))
"""No node ever has room."""


def shares_at_peak(held: list[Held], start: float) -> list[Share]:
    """The shares of jobs that hold parts of a node within a span of time that begins at `start`.

    Jobs that follow each other do not need their CPUs and memory at the same time. The first share
    has as much as all of them need at most.
    """
    shares = [it.share for it in held]
    if len(held) < 2 or not any(share.cpus or share.memory_bytes for share in shares):
        return shares
    at_once = [
        [other.share for other in held if other.start <= at < other.end]
        for at in {max(it.start, start) for it in held}
    ]
    cpus = max(sum(share.cpus for share in found) for found in at_once)
    memory = max(sum(share.memory_bytes for share in found) for found in at_once)
    rest = [share._replace(cpus=0, memory_bytes=0) for share in shares[1:]]
    return [shares[0]._replace(cpus=cpus, memory_bytes=memory), *rest]


def spans_of_all(held: list[Held], now: float) -> Spans:
    """The spans of time in which nothing holds any part of a node."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((it.start, it.end) for it in held):
        if start == math.inf:
            # A holder with an unknown start may take the node at any time after that.
            return (*found, (now, _LAST)) if now < math.inf else tuple(found)
        if start > now:
            found.append((now, start))
        now = max(now, end)
    return (*found, (now, math.inf)) if now < math.inf else tuple(found)


def spans_of_parts(node: Node, gpus: int, held: list[Held], now: float) -> Spans:
    """The spans of time in which `gpus` devices of the node are free."""
    taken = {device.uuid: 0 for device in node.inventory.devices}
    changes = [(now, 0, Share(whole=False)), *((max(it.start, now), 1, it.share) for it in held)]
    changes += [(it.end, -1, it.share) for it in held]
    changes.sort(key=lambda it: it[0])
    found: list[tuple[float, float]] = []
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
        # A holder with an unknown start may take its share at any time after that.
        found.append((begin, math.inf if all(it.start < math.inf for it in held) else _LAST))
    return tuple(found)


_LAST: Final = 1e300
"""Before every unknown time, and after every known one."""

SIZES_MAX: Final = 50_000  # those of ended jobs are removed all at once
Booked = dict[NodeName, dict[JobId, Held]]
"""The bookings of each node. The dictionaries of the nodes are never changed, only replaced."""


class Fitting(NamedTuple):
    """The nodes that fit a job, and their bits."""

    nodes: list[Node]
    bits: int


class Line(NamedTuple):
    """The timeline of all nodes with bookings, except that `stale` nodes have changed since."""

    known: Timeline
    stale: set[NodeName]


class Memo(NamedTuple):
    """Results of the last pass that hold as long as the nodes and their bookings stay the same."""

    gaps: dict[NodeName, dict[object, Spans]]
    copies: dict[NodeName, Node]
    fitting: dict[object, Fitting]
    lines: dict[int | None, Line]
    bits: dict[NodeName, int]
    booked: Booked
    nodes: dict[NodeName, Node]
    sizes: dict[JobId, tuple[JobSpec, Size, float]]
    served: dict[str, int]

    def without(self, nodes: AbstractSet[NodeName], *, described: bool, drained: bool) -> Memo:
        """A copy without these nodes. `described`: the inventory of one has changed; `drained`: one
        was taken out of service or back.
        """
        gaps = {name: it for name, it in self.gaps.items() if name not in nodes}
        copies = {name: it for name, it in self.copies.items() if name not in nodes}
        sizes = self.sizes if len(self.sizes) < SIZES_MAX else {}
        if described:
            return Memo(gaps, copies, {}, {}, {}, {}, {}, sizes, {})
        lines = {key: Line(it.known, it.stale | nodes) for key, it in self.lines.items()}
        served = {} if drained else dict(self.served)
        return Memo(gaps, copies, dict(self.fitting), lines, self.bits, {}, {}, sizes, served)

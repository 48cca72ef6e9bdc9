"""Index of the waiting jobs by size and time limit, so that a pass skips those without room."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from muster.protocol.ids import JobId
from muster.spec.model import JobSpec

Place = tuple[int, JobId]
"""The place of a job in its queue: the negative priority and the id."""
Size = tuple[str, int | None, int]
"""The pool, the GPUs of each node (None: whole nodes) and the number of nodes."""
BUCKETS_PER_OCTAVE: Final = 2
_SHARE: Final = 0.999
"""Of the shortest limit of a bucket, because logarithms are rounded."""


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

"""Timelines give the same answers as a look at each node."""

from __future__ import annotations

import math
import random

import pytest

from orchestrator.core.scheduling.timeline import NEVER, Spans, Timeline


def some_spans(chance: random.Random) -> Spans:
    points = sorted(map(float, chance.sample(range(30), chance.choice((0, 2, 4, 6)))))
    spans = tuple(zip(points[::2], points[1::2], strict=True))
    if chance.random() < 0.5:
        spans += ((chance.randint(31, 40), chance.choice((math.inf, 1e300))),)
    return spans


def put(line: Timeline, nodes: dict[int, Spans]) -> Timeline:
    room: dict[Spans, int] = {}
    for node, spans in nodes.items():
        room[spans] = room.get(spans, 0) | 1 << node
    return line.replaced(sum(1 << node for node in nodes), room)


def starts(
    nodes: list[Spans], wanted: int, length_s: float, now: float, before: float
) -> list[float]:
    """The same as Timeline.starts, node by node."""
    windows = [
        (max(begin, now), end - length_s if end < math.inf else math.inf)
        for spans in nodes
        for begin, end in spans
    ]
    return [
        at
        for at in sorted({first for first, last in windows if first <= last and first < before})
        if sum(first <= at <= last for first, last in windows) >= wanted
    ]


@pytest.mark.parametrize("seed", range(400))
def test_a_timeline_answers_as_its_nodes_do(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 8)
    nodes = {node: some_spans(chance) for node in range(count)}
    line = put(NEVER, nodes)
    for _ in range(4):
        now, length_s = float(chance.randint(0, 35)), chance.choice((1.0, 3.0, 7.5, math.inf))
        before, wanted = chance.choice((math.inf, 20.0, now + 3)), chance.randint(1, count)
        asked = chance.getrandbits(count)
        some = [spans for node, spans in nodes.items() if asked >> node & 1]
        found = list(line.starts(asked, wanted, length_s, now, before))
        assert found == starts(some, wanted, length_s, now, before)
        free = {
            node
            for node, spans in nodes.items()
            if any(begin <= now < end and now + length_s <= end for begin, end in spans)
        }
        assert line.free(asked, now, now + length_s) == asked & sum(1 << node for node in free)
        until = line.room_until(asked, wanted, now)
        for end in (now + 1.0, now + 4.0, now + length_s, 1e300, math.inf):
            enough = line.free(asked, now, end).bit_count() >= wanted
            assert (end <= until) is enough
        changed = {node: some_spans(chance) for node in chance.sample(range(count), count // 2)}
        nodes |= changed
        line = put(line, changed)

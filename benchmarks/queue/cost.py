"""Cost of a pass over a long queue, and how long a message waits behind it."""

from __future__ import annotations

import random
import time

from benchmarks.launch.samples import Aim, Row
from benchmarks.queue.replay import Replay, Wanted, spec_of
from muster.protocol.ids import JobId
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.guarded_turn import guarded_turns
from orchestrator.core.facts.effects import RequestId
from orchestrator.core.facts.inputs import SubmitReceived
from orchestrator.core.facts.jobs import JobSubmitted
from orchestrator.short_collections import ShortCollections

NODES, QUEUED, EVENTS = 500, 10_000, 300
BURST, BURSTS, ENDS = 200, 5, 50
PASS_AIM, SLICE_AIM = Aim(50.0, percent=99), Aim(5.0, percent=99)
_SIZES = ((1, 45), (2, 20), (4, 15), (8, 10), (16, 6), (64, 4))


def some_job(chance: random.Random) -> Wanted:
    """A job of 1 to 64 nodes; half of those of one node want a part of it."""
    nodes = chance.choices([it for it, _ in _SIZES], [it for _, it in _SIZES])[0]
    runs_s = 60 * 10 ** chance.uniform(0.5, 2.7)
    gpus = chance.choice((0, 0, 0, 1, 2, 4)) if nodes == 1 else 0
    return Wanted(0.0, runs_s, runs_s * chance.uniform(1, 5), nodes, gpus)


def measure(seed: int, nodes: int, queued: int, events: int) -> list[Row]:
    """Measure `events` submits and ends of jobs at a full cluster with a long queue."""
    with ShortCollections():  # as the coordinator
        return _measure(seed, nodes, queued, events)


def _measure(seed: int, nodes: int, queued: int, events: int) -> list[Row]:
    chance = random.Random(seed)
    replay = Replay()
    replay.add_nodes(nodes)
    for _ in range(queued):
        it = some_job(chance)
        name = JobId(replay.state.next_job)
        replay.wanted[name] = it
        apply(replay.state, JobSubmitted(name, spec_of(it), "ada", "", ""), replay.now.wall)
    what = f"{nodes} nodes, {queued} queued"
    replay.add(some_job(chance))
    while replay.began.keys() >= set() and len(replay.done) < 20 and replay.step():
        pass
    replay.turns.clear()
    submit = Row("pass", f"{what}: a submit", "ours", aim=PASS_AIM)
    end = Row("pass", f"{what}: an end", "ours", aim=PASS_AIM)
    part = Row("slice", what, "ours", aim=SLICE_AIM)
    for number in range(events):
        began = len(replay.turns)
        if number % 2:
            replay.add(some_job(chance))
            replay.step(replay.mono)
        else:
            done = len(replay.done)
            while len(replay.done) == done and replay.step():
                pass
        while replay.step(replay.mono):
            pass
        for turns in replay.turns[began:]:
            part.samples += [1e3 * it for it in turns]
        most = max(replay.turns[began:], key=sum)
        (submit if number % 2 else end).add(1e3 * sum(most))
    ends = Row("burst", f"{ENDS} jobs end at once: reports and first slice", "ours")
    whole = Row("burst", f"{ENDS} jobs end at once: all", "ours")
    for _ in range(BURSTS):
        turns = _ends(replay)
        ends.add(1e3 * turns[0])
        whole.add(1e3 * sum(turns))
    one, each = (
        Row("burst", f"{BURST} submits with {which}", "ours")
        for which in ("one pass", "a pass each")
    )
    for _ in range(BURSTS):
        one.add(1e3 * _burst(replay, chance, together=True))
        each.add(1e3 * _burst(replay, chance, together=False))
    return [submit, end, part, ends, whole, one, each]


def _ends(replay: Replay) -> list[float]:
    """Let jobs end at once; returns the seconds of each slice of the pass that follows."""
    began = len(replay.turns)
    replay.end_together(list(replay.began)[:ENDS])
    while replay.step(replay.mono):
        pass
    return replay.turns[began]


def _burst(replay: Replay, chance: random.Random, *, together: bool) -> float:
    """Submit jobs at once; returns the seconds until the coordinator may write and answer."""
    at = replay.now
    submits = [
        (SubmitReceived(RequestId(number), spec_of(some_job(chance)), "ada", "", ""), at)
        for number in range(BURST)
    ]
    began = time.thread_time()
    for batch in [submits] if together else [[it] for it in submits]:
        guarded_turns(replay.state, batch, replay.limits)
    return time.thread_time() - began

"""Quality of backfill: how long jobs wait, in virtual time over the coordinator's core."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any, Final, NamedTuple

from benchmarks.queue.replay import GPUS, Done, Replay
from benchmarks.queue.workloads import WORKLOADS, size, workload
from orchestrator.core.model.plan import Backfill, MoveCause, PoolPolicy

NODES, SEEDS = 64, 20
JOBS: Final = {"lublin": 600, "alibaba": 3_000}
LOADS: Final = (0.7, 0.9, 1.1)
WARM: Final = 0.2
"""This share of the time until the last arrival is not measured: the cluster fills."""
AIM_LOAD, AIM = 0.9, 0.4
"""Goal for the slowdown with backfill, as a share of FIFO's."""

FIFO, CONSERVATIVE, EASY, SHORTEST = "FIFO", "conservative", "easy", "shortest first"
POLICIES: Final = {
    FIFO: PoolPolicy(Backfill.OFF),
    CONSERVATIVE: PoolPolicy(Backfill.CONSERVATIVE),
    EASY: PoolPolicy(Backfill.EASY),
    SHORTEST: PoolPolicy(Backfill.EASY),
}
"""`shortest first` is EASY in the order of the true run times, which are its limits."""


class Case(NamedTuple):
    """A workload that is replayed under a policy."""

    workload: str
    load: float
    policy: str
    seed: int
    jobs: int
    nodes: int = NODES


class Score(NamedTuple):
    """The figures of a replay, or their means over several. Times are in seconds.

    `slowdown` is bounded: run times count as at least 10 s. `utilisation` is the share of all GPUs
    that jobs held. `large_s` is the mean wait of the largest tenth of the jobs. `late` are jobs
    that started later than promised, `unnamed` promises that moved without a named event, `moved`
    all that moved.
    """

    wait_s: float
    p95_s: float
    slowdown: float
    utilisation: float
    large_s: float
    promised: float = 0.0
    moved: float = 0.0
    late: float = 0.0
    unnamed: float = 0.0


def replay(case: Case) -> Score:
    """Replay a workload until all its jobs have ended."""
    jobs = workload(case.workload, case.seed, case.jobs, case.nodes, case.load)
    if case.policy == SHORTEST:
        jobs = [it._replace(priority=-math.ceil(it.runs_s), limit_s=it.runs_s) for it in jobs]
    cluster = Replay(pools={"default": POLICIES[case.policy]})
    cluster.add_nodes(case.nodes)
    start = cluster.mono
    cluster.run(jobs)
    if len(cluster.done) != len(jobs):
        raise RuntimeError(f"{len(jobs) - len(cluster.done)} jobs never ended in {case}")
    return score(cluster.done, start, jobs[-1].at, case.nodes)._replace(
        promised=len(cluster.promised),
        moved=len(cluster.moved),
        late=len(cluster.late),
        unnamed=sum(it.event.cause is MoveCause.UNNAMED for it in cluster.moved),
    )


def score(ended: list[Done], start: float, span_s: float, nodes: int) -> Score:
    """Return the figures of jobs that arrive from `start` on, the last one after `span_s`."""
    begin, end = start + WARM * span_s, start + span_s
    done = [it for it in ended if start + it.wanted.at >= begin]
    waits = sorted(_wait_s(it, start) for it in done)
    slowdowns = [
        max(1.0, (_wait_s(it, start) + it.wanted.runs_s) / max(it.wanted.runs_s, 10.0))
        for it in done
    ]
    held = sum(
        size(it.wanted) * max(0.0, min(it.ended, end) - max(it.began, begin)) for it in ended
    )
    largest = sorted(done, key=lambda it: size(it.wanted))[-max(1, len(done) // 10) :]
    return Score(
        statistics.mean(waits),
        waits[math.ceil(0.95 * len(waits)) - 1],
        statistics.mean(slowdowns),
        held / (nodes * GPUS * (end - begin)),
        statistics.mean(_wait_s(it, start) for it in largest),
    )


def _wait_s(it: Done, start: float) -> float:
    return it.began - start - it.wanted.at


Kind = tuple[str, float, str]
"""Workload, load and policy."""


def measure(
    seeds: int, jobs: int | None, nodes: int, loads: Iterable[float], workers: int
) -> dict[Kind, list[Score]]:
    """Return the figures of each seed. Without `jobs`, each workload has its own number."""
    kinds = list(product(WORKLOADS, loads, POLICIES))
    cases = [
        Case(*kind, seed, jobs or JOBS[kind[0]], nodes)
        for kind in kinds
        for seed in range(1, seeds + 1)
    ]
    if workers == 1:
        scores = list(map(replay, cases))
    else:
        with ProcessPoolExecutor(workers) as pool:
            scores = list(pool.map(replay, cases))
    return {
        kind: scores[at : at + seeds]
        for kind, at in zip(kinds, range(0, len(scores), seeds), strict=True)
    }


def mean(scores: list[Score]) -> Score:
    """Return the mean of each figure."""
    return Score(*map(statistics.mean, zip(*scores, strict=True)))


def table(found: dict[Kind, list[Score]]) -> str:
    """Return the means as lines of Markdown."""
    head = (
        *("workload", "load", "policy", "mean wait", "p95 wait", "slowdown", "of FIFO's"),
        *("utilisation", "wait of the largest tenth", "promises", "moved", "late", "unnamed"),
    )
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for (name, load, policy), scores in found.items():
        it = mean(scores)
        part = it.slowdown / mean(found[name, load, FIFO]).slowdown
        times = [f"{at / 60:.1f} min" for at in (it.wait_s, it.p95_s, it.large_s)]
        counts = [str(sum(counts)) for counts in list(zip(*scores, strict=True))[5:]]
        cells = [name, f"{load:g}", policy, *times[:2], f"{it.slowdown:.1f}", f"{part:.3f}"]
        cells += [f"{100 * it.utilisation:.1f} %", times[2], *counts]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rows(found: dict[Kind, list[Score]]) -> list[dict[str, Any]]:
    """Return everything as JSON objects, one for each workload, load and policy."""
    return [
        {
            "workload": name,
            "load": load,
            "policy": policy,
            "seeds": [it._asdict() for it in scores],
        }
        for (name, load, policy), scores in found.items()
    ]


def missed(found: dict[Kind, list[Score]]) -> list[str]:
    """Return the goals that were missed."""
    notes = []
    for (name, load, policy), scores in found.items():
        part = mean(scores).slowdown / mean(found[name, load, FIFO]).slowdown
        if load == AIM_LOAD and policy in (CONSERVATIVE, EASY) and part > AIM:
            notes.append(f"{name}, {policy}: the slowdown is {part:.2f} of FIFO's, not {AIM:g}")
        if broken := sum(it.late + it.unnamed for it in scores):
            notes.append(f"{name}, load {load:g}, {policy}: {broken} promises were broken")
    return notes

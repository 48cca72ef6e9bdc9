"""A window of jobs by Slurm and by ours: the same sizes, run times, limits and arrivals.

Slurm runs in real time, in which a second stands for SCALE seconds of the jobs. Its own intervals
are as many times shorter, so that it plans as often as it does by default. Ours runs in virtual
time. Slurm's jobs hold their nodes for a while before and after they run. Ours hold them for as
long as Slurm's do on average.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.launch import slurm
from benchmarks.queue.quality import CONSERVATIVE, EASY, FIFO, POLICIES, Score, score
from benchmarks.queue.replay import Done, Replay, Wanted
from benchmarks.queue.workloads import workload

SLURM: Final = "Slurm"
SCALE: Final = 30
NODES, JOBS, LOAD = 32, 300, 0.9
LONGEST_S: Final = 7_200.0
"""Longer jobs are left out, so that the window takes about 15 minutes."""
MINUTE_S: Final = 60 * SCALE
"""Slurm counts time limits in whole minutes of its own time."""
AIM: Final = 1.1
"""Goal for our mean wait, as a multiple of Slurm's."""

_PASSES: Final = (
    *("bf_interval=1", "bf_resolution=1", "bf_max_job_test=1000", "bf_continue"),
    *("default_queue_depth=1000", "sched_interval=2", "batch_sched_delay=1"),
)
SETTINGS: Final = (
    "SchedulerType=sched/backfill",
    f"SchedulerParameters={','.join(_PASSES)}",
    "PriorityType=priority/basic",
    # No job is killed because its start or end takes longer here, and none is forgotten.
    "OverTimeLimit=1",
    "MinJobAge=7200",
    "MessageTimeout=60",
)


def window(seed: int, jobs: int) -> list[Wanted]:
    """Return the jobs, with limits that Slurm can represent."""
    found = workload("lublin", seed, jobs, NODES, LOAD, LONGEST_S)
    return [it._replace(limit_s=MINUTE_S * math.ceil(it.limit_s / MINUTE_S)) for it in found]


def measure(seed: int, jobs: int) -> tuple[dict[str, Score], float]:
    """Return the figures by policy, and for how many seconds Slurm's jobs held their nodes besides
    their run time.
    """
    wanted = window(seed, jobs)
    theirs = _by_slurm(wanted)
    extra_s = statistics.mean(it.ended - it.began - it.wanted.runs_s for it in theirs)
    found = {SLURM: score(theirs, 0.0, theirs[-1].wanted.at, NODES)}
    for policy in (CONSERVATIVE, EASY, FIFO):
        found[policy] = by_ours(policy, wanted, extra_s)
    return found, extra_s


def by_ours(policy: str, jobs: Sequence[Wanted], extra_s: float) -> Score:
    """Replay the jobs in virtual time; each holds its nodes for `extra_s` longer than it runs."""
    cluster = Replay(pools={"default": POLICIES[policy]})
    cluster.add_nodes(NODES)
    start = cluster.mono
    cluster.run(it._replace(runs_s=it.runs_s + extra_s) for it in jobs)
    done = [
        it._replace(wanted=it.wanted._replace(runs_s=it.wanted.runs_s - extra_s))
        for it in cluster.done
    ]
    return score(done, start, jobs[-1].at, NODES)


def _by_slurm(jobs: Sequence[Wanted]) -> list[Done]:
    with slurm.running(NODES, SETTINGS) as there:
        began = time.time()
        numbers = {}
        for it in jobs:
            time.sleep(max(0.0, began + it.at / SCALE - time.time()))
            said = there.run(
                *("sbatch", "--parsable", "--exclusive", f"-N{it.nodes}", "-o", "/dev/null"),
                *(f"-t{round(it.limit_s / MINUTE_S)}", "--wrap"),
                f"exec sleep {it.runs_s / SCALE:.3f}",
            )
            numbers[int(said)] = it
        while there.run("squeue", "-h").strip():
            time.sleep(1.0)
        return ended(there.run("squeue", "-h", "-t", "all", "-o", "%i %T %V %S %e"), numbers, began)


def ended(lines: str, jobs: dict[int, Wanted], began: float) -> list[Done]:
    """Return the jobs in the order of their numbers, from the lines of squeue: number, state, and
    the times of submission, start and end. Raises RuntimeError.
    """
    found = {}
    for line in lines.splitlines():
        number, state, *times = line.split()
        if state != "COMPLETED":
            raise RuntimeError(f"Slurm: job {number} is {state}")
        at, first, last = (SCALE * (int(it) - began) for it in times)
        found[int(number)] = Done(jobs[int(number)]._replace(at=at), first, last)
    if found.keys() != jobs.keys():
        raise RuntimeError(f"Slurm: {len(found)} of {len(jobs)} jobs are known")
    return [found[number] for number in sorted(found)]


def table(found: dict[str, Score]) -> str:
    """Return the figures as lines of Markdown."""
    head = (
        *("policy", "mean wait", "of Slurm's", "p95 wait", "wait of the largest tenth"),
        *("slowdown", "utilisation"),
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for policy, it in found.items():
        mean, p95, large = (f"{at / 60:.1f} min" for at in (it.wait_s, it.p95_s, it.large_s))
        part = f"{_of_slurms(it, found):.2f}"
        cells = [policy, mean, part, p95, large]
        cells += [f"{it.slowdown:.1f}", f"{100 * it.utilisation:.1f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def missed(found: dict[str, Score]) -> list[str]:
    """Return the goal if it was missed."""
    part = _of_slurms(found[CONSERVATIVE], found)
    return [f"the mean wait is {part:.2f} of Slurm's, not {AIM:g}"] if part > AIM else []


def _of_slurms(it: Score, found: dict[str, Score]) -> float:
    return it.wait_s / max(1.0, found[SLURM].wait_s)

"""Ranks of a running gang that have ended while others go on."""

from __future__ import annotations

from muster.protocol.observations.hangs import Doing, RankActivity
from muster.spec.model import Launcher
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.monitoring.hang_rules import AT_ITS_END, ended_text


def ended_ranks(job: Job, task: Task, age_s: float | None = None) -> list[RankActivity]:
    """The ranks of a task that has ended; `age_s` is how long the gang has run, if that is known.

    Empty for scripts (`launcher: none`): they end at any time and are not ranks of one program.
    """
    if job.spec.launcher is Launcher.NONE:
        return []
    found = []
    for rank in task.ranks:
        known = age_s is not None and rank.at_s is not None
        age = max(0.0, (age_s or 0.0) - (rank.at_s or 0.0)) if known else None
        found.append(RankActivity(rank.rank, still_s=age, idle_s=age, doing=Doing.GONE))
    return found


def ended_line(job: Job, attempt: Attempt) -> str:
    """Text on the ranks that have ended while others run.

    Empty if there are none, if a verdict says so already, or if the state of some rank is unknown.
    """
    if attempt.hang is not None:
        return ""
    ranks: list[RankActivity] = []
    for task in attempt.present:
        if task.exit is None and not task.activity:
            return ""
        ranks += task.activity if task.exit is None else ended_ranks(job, task)
    return ended_text(ranks)


def hint(attempt: Attempt, node: str) -> str:
    """The hint for a rank on this node that hangs since others ended; empty for other nodes."""
    found = attempt.hang
    return AT_ITS_END if found and found.node == node and AT_ITS_END in found.notes else ""

"""The fact about new observations of a task by its agent. Never durable: the agent repeats them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from muster.protocol.ids import TaskId
from muster.protocol.observations.hangs import RankActivity
from muster.protocol.observations.traffic import FabricReport
from orchestrator.core.facts.base import EPHEMERAL, BaseFact


class TaskObserved(
    BaseFact, durability=EPHEMERAL, reschedules=False, milestone=False, revises=False
):
    """New observations of a task, made at `at` (monotonic seconds of this process). None is
    unchanged.

    `traffic` are the figures of the node's part of the gang's traffic. `silent` are the neighbours,
    by address, whose machines no longer answer the task's node. `activity` is that of the task's
    ranks at `at`. `idle_since` is since when its GPUs are idle (monotonic seconds); None if they
    are busy or cannot be read.
    """

    task: TaskId
    at: float
    traffic: FabricReport | None = None
    silent: tuple[str, ...] | None = None
    activity: tuple[RankActivity, ...] | None = None
    idle_since: float | UnsetType | None = UNSET

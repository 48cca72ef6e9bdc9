"""Observations of a task by the monitors of its node."""

from __future__ import annotations

import msgspec

from muster.protocol.observations.hangs import RankActivity
from muster.protocol.observations.traffic import FabricReport


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Checkpoints of a job that a node has seen since its task began: `fresh` is how often
    something new had settled. `name` is the newest file of the last time, found `ago_s` before this
    report.
    """

    fresh: int
    name: str
    ago_s: float = 0.0


class TaskObservations(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that the monitors of a node observe of a task.

    `traffic` is the evidence of the gang's traffic on this node. `silent` are the addresses of
    peers that have answered this node's pings before and no longer do. `activity` is the movement
    of each rank at the time of the report; () if it is not monitored. `idle_s` is how long its GPUs
    have been idle, by the limits of PrepareTask; None if they are not, not that long, or
    unreadable.
    """

    traffic: FabricReport | None = None
    silent: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    activity: tuple[RankActivity, ...] = ()
    idle_s: float | None = None

"""Checkpoints of a job, as the agent of a node sees them."""

from __future__ import annotations

import msgspec


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Checkpoints of a job that a node has seen since its task began: `fresh` is how often
    something new had settled. `name` is the newest file of the last time, found `ago_s` before this
    report.
    """

    fresh: int
    name: str
    ago_s: float = 0.0

"""Detect idle GPUs of a task from a series of utilization readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GAP_MAX_S: Final = 60.0
"""If the gap between two readings is longer, the state of the GPUs in between is unknown."""


@dataclass(frozen=True, slots=True)
class IdleStretch:
    """`since`: all GPUs have been idle since then (None: they are not). `read_at`: the last
    reading. Both are in monotonic seconds."""

    since: float | None = None
    read_at: float = 0.0


def update(
    before: IdleStretch, readings: Sequence[int | None], below: int, at: float
) -> IdleStretch:
    """Add one reading of every GPU of the task, in percent. None is an unreadable GPU, which never
    counts as idle."""
    if not readings or any(used is None or used >= below for used in readings):
        return IdleStretch(None, at)
    if before.since is None or at - before.read_at > GAP_MAX_S:
        return IdleStretch(at, at)
    return IdleStretch(before.since, at)


def idle_since(stretch: IdleStretch, after_s: float) -> float | None:
    """The start of the idle stretch. Returns None if the stretch is too short to report."""
    if stretch.since is None or stretch.read_at - stretch.since < after_s:
        return None
    return stretch.since

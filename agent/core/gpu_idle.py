"""Whether the GPUs of a task are idle: what a row of readings means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GAP_MAX_S: Final = 60.0
"""Nobody knows what the GPUs did in a gap between two readings that is longer."""


@dataclass(frozen=True, slots=True)
class IdleStretch:
    """In monotonic seconds: since when all of the GPUs have been idle (None: they are not), and the
    last reading."""

    since: float | None = None
    read_at: float = 0.0


def update(
    before: IdleStretch, readings: Sequence[int | None], below: int, at: float
) -> IdleStretch:
    """What is known after one more reading of every GPU of the task, in percent; None is one that
    cannot be read, and of that nobody says that it is idle."""
    if not readings or any(used is None or used >= below for used in readings):
        return IdleStretch(None, at)
    if before.since is None or at - before.read_at > GAP_MAX_S:
        return IdleStretch(at, at)
    return IdleStretch(before.since, at)


def idle_since(stretch: IdleStretch, after_s: float) -> float | None:
    """Since when they are idle, where that has been so for long enough to be told."""
    if stretch.since is None or stretch.read_at - stretch.since < after_s:
        return None
    return stretch.since

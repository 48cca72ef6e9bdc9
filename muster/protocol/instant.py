"""A moment as the cores see it: an input, never something they ask for."""

from __future__ import annotations

import msgspec


class Instant(msgspec.Struct, frozen=True):
    """One reading of both clocks.

    `mono` (seconds, of this process's life) decides; `wall` (seconds since 1970, UTC) is only
    ever shown.
    """

    mono: float
    wall: float

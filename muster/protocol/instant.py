"""Time as the cores receive it: an input; they never read a clock."""

from __future__ import annotations

import msgspec

ROUNDING_S = 0.01
"""A timer that fires early by at most this much counts as on time."""


class Instant(msgspec.Struct, frozen=True):
    """A reading of both clocks.

    Decisions use `mono` (seconds, valid in this process); `wall` (seconds since 1970, UTC) is only
    shown.
    """

    mono: float
    wall: float

"""Time as the cores receive it: an input; they never read a clock."""

from __future__ import annotations

import msgspec


class Instant(msgspec.Struct, frozen=True):
    """A reading of both clocks.

    Decisions use `mono` (seconds, valid in this process); `wall` (seconds since 1970, UTC) is only
    shown.
    """

    mono: float
    wall: float

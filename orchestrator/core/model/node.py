"""A node's link, as the coordinator sees it, and beside that whether it is in service: that an
operator or a quarantine has taken it out is true whether it is connected or not."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.spec.units import duration_text


class LinkState(enum.Enum):
    """OFFLINE: not heard of in this epoch. SUSPECT: silent, its lease still runs. LOST: lease
    over."""

    OFFLINE = "offline"
    CONNECTED = "connected"
    SUSPECT = "suspect"
    LOST = "lost"


LINK_TRANSITIONS: Final[dict[LinkState, frozenset[LinkState]]] = {
    LinkState.OFFLINE: frozenset({LinkState.CONNECTED, LinkState.SUSPECT, LinkState.LOST}),
    LinkState.CONNECTED: frozenset({LinkState.CONNECTED, LinkState.SUSPECT}),
    LinkState.SUSPECT: frozenset({LinkState.CONNECTED, LinkState.LOST}),
    LinkState.LOST: frozenset({LinkState.CONNECTED}),
}


class AdminState(enum.Enum):
    """Derived: DRAINING gets no job any more and still has one, DRAINED has none."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"


class Drain(msgspec.Struct, frozen=True):
    """Out of service, by `user`, since `at` (UTC seconds, only ever shown).

    Of a deadline `left_s` seconds were left when that was last written down, at `left_at`; None:
    what runs there may end by itself. `after_checkpoint`: a job may leave once it has written one.
    `jobs`: those for whose failures the coordinator itself has quarantined the node. `number` tells
    the drains of a node apart.
    """

    user: str
    reason: str
    at: float
    number: int = 1
    deadline_s: float | None = None
    left_s: float | None = None
    left_at: float = 0.0
    jobs: tuple[JobId, ...] = ()
    after_checkpoint: bool = False


class MassOutage(msgspec.Struct, frozen=True):
    """Since `at` (monotonic) and for `lasts_s` nothing is called lost: of the agents that were
    there, `gone` of `of` fell silent at once."""

    at: float
    lasts_s: float
    gone: int
    of: int


class Fault(msgspec.Struct, frozen=True):
    """A job of which an attempt failed by this node's fault. Since then `since` attempts ended well
    there."""

    job: JobId
    attempt: int
    text: str
    since: int = 0


def drained_by(drain: Drain, now: Instant | None = None) -> str:
    """`drained by ana since 2h: bad DIMM`, to follow the node's name and `is`."""
    since = "" if now is None else f" since {rounded_down(now.wall - drain.at)}"
    return f"drained by {drain.user}{since}: {drain.reason}"


def rounded_down(seconds: float) -> str:
    """In the largest unit of which there is one: 2h, 5m, 0s."""
    whole = int(max(0.0, seconds))
    for unit_s in (86400, 3600, 60):
        if whole >= unit_s:
            return duration_text(float(whole - whole % unit_s))
    return duration_text(float(whole))

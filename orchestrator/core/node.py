"""A node's link, as the coordinator sees it; what an operator and health say of it are separate
fields."""

from __future__ import annotations

import enum
from typing import Final


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

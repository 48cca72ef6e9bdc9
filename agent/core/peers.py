"""Liveness of the machines of a gang's neighbours: which ones to ping, and when they count as
silent.

A machine that never answered, for example behind a firewall that drops packets, does not count.
Only a machine that answered once and has stopped is silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from muster.protocol.link.control_channel import ArrangeTask

MISSED: Final = 3
"""A machine is silent after this many unanswered pings in a row: one may be lost, and a machine may
stall."""


def peers_of(plan: ArrangeTask, node: str) -> tuple[str, ...]:
    """The addresses that a node pings: the ranks before and after it, and the first one. Others
    ping every node of a gang, and only the first is pinged by very many."""
    ring = list(dict.fromkeys(address for _, address in plan.hosts))
    own = next((address for name, address in plan.hosts if name == node), None)
    if own is None:
        return ()
    at = ring.index(own)
    wanted = (ring[at - 1], ring[(at + 1) % len(ring)], ring[0])
    return tuple(address for address in dict.fromkeys(wanted) if address != own)


@dataclass(slots=True)
class PeerAnswers:
    """The answers of each address."""

    # unanswered pings in a row, of addresses that ever answered
    _missed: dict[str, int] = field(default_factory=dict)

    def heard(self, address: str, *, answered: bool) -> None:
        if answered:
            self._missed[address] = 0
        elif address in self._missed:
            self._missed[address] += 1

    @property
    def silent(self) -> tuple[str, ...]:
        """Addresses that answered once and have stopped."""
        return tuple(sorted(it for it, missed in self._missed.items() if missed >= MISSED))

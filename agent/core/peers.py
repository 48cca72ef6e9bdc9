"""Whether the machines of a gang's neighbours still answer: who is watched, and what that says.

One that never answered, because a firewall is silent for it, is no witness: only one that did and
does not any more is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from muster.protocol.control_channel import ArrangeTask

MISSED: Final = 3
"""So many in a row that got no answer: one may be lost, and a machine may stall."""


def peers_of(plan: ArrangeTask, node: str) -> tuple[str, ...]:
    """The addresses that a node watches: those of the ranks before and after it, and of the first.
    All nodes of a gang are watched by others, and none by very many but the first."""
    ring = list(dict.fromkeys(address for _, address in plan.hosts))
    own = next((address for name, address in plan.hosts if name == node), None)
    if own is None:
        return ()
    at = ring.index(own)
    wanted = (ring[at - 1], ring[(at + 1) % len(ring)], ring[0])
    return tuple(address for address in dict.fromkeys(wanted) if address != own)


@dataclass(slots=True)
class PeerAnswers:
    """What became of the questions to each address."""

    _missed: dict[str, int] = field(default_factory=dict)  # in a row, of those that ever answered

    def heard(self, address: str, *, answered: bool) -> None:
        if answered:
            self._missed[address] = 0
        elif address in self._missed:
            self._missed[address] += 1

    @property
    def silent(self) -> tuple[str, ...]:
        """Those that answered once, and do not any more."""
        return tuple(sorted(it for it, missed in self._missed.items() if missed >= MISSED))

"""The control link without I/O: numbering what is sent, and judging what arrives.

A connection delivers in order or not at all, and a new connection begins with a full exchange of
state
(`Hello`, `Welcome` and the commands that follow), so nothing is ever sent again from a buffer.
The numbers serve to notice: a repeated frame is dropped, a gap ends the connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.protocol.codec import ProtocolError


@dataclass(slots=True)
class Link:
    """One connection's counters, the same on both sides."""

    sent: int = 0
    received: int = 0

    def next_seq(self) -> int:
        """Number of the frame that is about to be sent, from 1."""
        self.sent += 1
        return self.sent

    def accept(self, seq: int) -> bool:
        """Whether the frame numbered `seq` is new. Raises ProtocolError where frames are
        missing."""
        if seq <= self.received:
            return False
        if seq != self.received + 1:
            raise ProtocolError(
                f"frame {seq} came after frame {self.received}: "
                f"{seq - self.received - 1} frames are missing"
            )
        self.received = seq
        return True

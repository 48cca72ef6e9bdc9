"""Sequence numbers of the control link, without I/O.

A connection delivers in order or not at all, and a new connection begins with a full exchange of
state (`Hello`, `Welcome` and the commands that follow), so no buffer is ever resent. The numbers
detect errors: a repeated frame is dropped, a gap ends the connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.protocol.link.codec import ProtocolError


@dataclass(slots=True)
class Link:
    """Counters of a connection, the same on both sides."""

    sent: int = 0
    received: int = 0

    def next_seq(self) -> int:
        """Return the number of the next frame to send, from 1."""
        self.sent += 1
        return self.sent

    def accept(self, seq: int) -> bool:
        """True if the frame numbered `seq` is new. Raises ProtocolError if frames are missing."""
        if seq <= self.received:
            return False
        if seq != self.received + 1:
            raise ProtocolError(
                f"frame {seq} came after frame {self.received}: "
                f"{seq - self.received - 1} frames are missing"
            )
        self.received = seq
        return True

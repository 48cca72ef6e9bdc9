"""Timing of the pings between the machines of a gang."""

from __future__ import annotations

from typing import Final

PERIOD_S: Final = 3.0
ANSWER_S: Final = 2.0
"""Seconds to wait for an answer. The kernel retransmits after a second: two lost packets in a row
are rare, three times that never.
"""
ROUND_S: Final = ANSWER_S + PERIOD_S + ANSWER_S + 1.0
"""Maximum age of a peer report: a ping under way, the pause, the next ping, and a second for the
report's delivery.
"""

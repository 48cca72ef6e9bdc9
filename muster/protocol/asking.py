"""How often an agent asks whether the machines of its neighbours are there."""

from __future__ import annotations

from typing import Final

PERIOD_S: Final = 3.0
ANSWER_S: Final = 2.0
"""The kernel asks again after a second: two lost packets in a row are rare, three times that never.
"""
ROUND_S: Final = ANSWER_S + PERIOD_S + ANSWER_S + 1.0
"""What an agent says of its neighbours is never older: a question that was under way, the pause,
the next question, and a second for the word to get here."""

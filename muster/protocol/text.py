"""Names and numbers in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PROLOG: Final = "prolog: "
"""Begin of the entry of a task's `warnings` that has the last line of the site's prolog."""
EPILOG: Final = "epilog: "
"""The same for the site's epilog."""


def count(number: int, noun: str) -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(names: Sequence[str], most: int = 4) -> str:
    """Return `a, b`, with at most `most` names and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(sentences: Sequence[str], most: int = 4) -> str:
    """Return `a; b`, with at most `most` sentences and the number of further ones."""
    more = f"; and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more

"""How names and numbers stand in a sentence for a person."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(names: Sequence[str], most: int = 4) -> str:
    """`a, b`; of more than `most` the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(sentences: Sequence[str], most: int = 4) -> str:
    """`a; b`; of more than `most` the first, and how many more there are."""
    more = f"; and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more

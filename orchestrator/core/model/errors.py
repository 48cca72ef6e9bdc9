"""What no fact may do."""

from __future__ import annotations


class InvalidTransition(Exception):
    """A fact that cannot follow from the state: a fault of ours, or a journal that is not ours."""

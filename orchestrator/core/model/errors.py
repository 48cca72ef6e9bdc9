"""Errors of the state machines."""

from __future__ import annotations


class InvalidTransition(Exception):
    """A fact that cannot follow from the state: a bug, or a foreign journal."""

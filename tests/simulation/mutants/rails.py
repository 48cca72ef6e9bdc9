"""Planted bugs of the fabric plan."""

from __future__ import annotations

from orchestrator.core.gangs import transitions
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put

MUTANTS = (
    Mutant(
        "a gang has no fabric plan", _put(transitions, "plan_for", lambda *_: None), ("rails",), 352
    ),
)

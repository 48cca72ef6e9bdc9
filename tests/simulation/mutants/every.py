"""All planted bugs."""

from __future__ import annotations

from tests.simulation.mutants import books, links, ours, stops

EVERY = (*books.MUTANTS, *links.MUTANTS, *ours.MUTANTS, *stops.MUTANTS)

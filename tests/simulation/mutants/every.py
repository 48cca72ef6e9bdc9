"""All planted bugs."""

from __future__ import annotations

from tests.simulation.mutants import (
    books,
    drained,
    gpus,
    hosts,
    kept,
    links,
    networks,
    ours,
    rails,
    steered,
    stops,
)

EVERY = (
    *books.MUTANTS,
    *drained.MUTANTS,
    *gpus.MUTANTS,
    *hosts.MUTANTS,
    *kept.MUTANTS,
    *links.MUTANTS,
    *networks.MUTANTS,
    *ours.MUTANTS,
    *rails.MUTANTS,
    *steered.MUTANTS,
    *stops.MUTANTS,
)

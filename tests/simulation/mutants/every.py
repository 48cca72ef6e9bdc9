"""All planted bugs."""

from __future__ import annotations

from tests.simulation.mutants import (
    books,
    drained,
    gpus,
    held,
    hosts,
    judged,
    kept,
    links,
    networks,
    ours,
    queued,
    rails,
    restored,
    steered,
    stops,
    vouched,
)

EVERY = (
    *books.MUTANTS,
    *drained.MUTANTS,
    *gpus.MUTANTS,
    *held.MUTANTS,
    *hosts.MUTANTS,
    *judged.MUTANTS,
    *kept.MUTANTS,
    *links.MUTANTS,
    *networks.MUTANTS,
    *ours.MUTANTS,
    *queued.MUTANTS,
    *rails.MUTANTS,
    *restored.MUTANTS,
    *steered.MUTANTS,
    *stops.MUTANTS,
    *vouched.MUTANTS,
)

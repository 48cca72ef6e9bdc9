"""Planted bugs of promised starts."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from orchestrator.core.model.plan import Booking, PlannedEnd
from orchestrator.core.scheduling import elastic, planner, profile
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put, _wrap


def _sooner(real: Any, part: Any) -> Any:
    def planned(
        state: Any, job: Any, before: PlannedEnd | None, now: Any, *more: Any
    ) -> PlannedEnd:
        found: PlannedEnd = real(state, job, before, now, *more)
        if found is before or found.at == float("inf"):
            return found
        return structs.replace(found, at=found.at - part(found))

    return planned


def _limit_misread(real: Any) -> Any:
    return _sooner(real, lambda end: end.limit_s / 2 if end.limit_s < float("inf") else 0.0)


def _grace_forgotten(real: Any) -> Any:
    return _sooner(real, lambda end: end.grace_s)


def _unbooked(self: profile.Profile, job: Any, booking: Booking | None) -> None:
    self.bookings.pop(job, None)
    self.endless.discard(job)
    if booking is not None:
        self.bookings[job] = booking


MUTANTS = (
    Mutant(
        "a time limit is half of what it is",
        _wrap(planner, "planned_end", _limit_misread),
        ("promise",),
        seed=6,
        backfill=True,
    ),
    Mutant(
        "the grace period of a stop takes no time",
        _wrap(planner, "planned_end", _grace_forgotten),
        ("promise",),
        seed=14,
        backfill=True,
    ),
    Mutant(
        "a node is promised to two jobs at once",
        _put(profile.Profile, "book", _unbooked),
        ("promise", "queue"),
        seed=10,
        backfill=True,
    ),
    Mutant(
        "an elastic gang grows into a promise",
        _put(elastic, "is_booked", lambda *_: False),
        ("promise", "queue"),
        seed=125,
        backfill=True,
    ),
)

"""The note on a time limit that the user has not typed."""

from __future__ import annotations

from muster.cli.output.format import note
from muster.http.views import JobSummary
from muster.spec.units import duration_text


def note_time_limit(summary: JobSummary, origin: str) -> None:
    """Print the time limit of a submitted job, if it has one, and where the limit comes from."""
    if summary.time_limit_s is not None:
        note(f"its time limit is {duration_text(summary.time_limit_s)}, {origin}")

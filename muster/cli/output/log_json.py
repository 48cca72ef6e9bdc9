"""Logs for programs: the API's records, one per line."""

from __future__ import annotations

from contextlib import nullcontext

from muster.cli.client_options import detaching
from muster.cli.jobs.wait import exit_code
from muster.cli.output.json_output import print_json_line
from muster.client import Client, LogQuery
from muster.http.views import LogTrailer
from muster.protocol.states import ENDED_STATES


def print_records(client: Client, job: int, query: LogQuery) -> tuple[int | None, str]:
    """Print the records that `query` selects, and the trailer. Returns the job's exit code (None if
    it has not ended) and the trailer's message about missing bytes. Ctrl-C while following raises
    DetachedError."""
    missing = ""
    with detaching(job) if query.follow else nullcontext():
        for entry in client.logs(job, query):
            print_json_line(entry)
            if isinstance(entry, LogTrailer):
                missing = entry.reason or ""
        if query.follow and query.attempt is None:
            client.wait(job)  # the last byte may arrive just before the job ends
    view = client.job(job)
    return (exit_code(view) if view.state in ENDED_STATES else None), missing

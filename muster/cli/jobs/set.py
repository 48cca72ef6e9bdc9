"""`muster set`: change a submitted job."""

from __future__ import annotations

import time
from typing import Final

import click
from msgspec.structs import replace

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB_OR_CHANGE
from muster.cli.jobs.bulk import find_jobs, for_each
from muster.cli.output.format import note, safe, unconfirmed
from muster.cli.output.json_output import json_option
from muster.client import Client
from muster.http.views import JobList, JobSummary

_NOTHING: Final = ("none", "")
_CONFIRM_S: Final = 3.0
_PAUSE_S: Final = 0.1
_TIME_LIMIT: Final = ("time_limit", "max_duration", "time")


@click.command("set")
@click.argument("words", metavar="JOB... KEY=VALUE...", nargs=-1, required=True, type=JOB_OR_CHANGE)
@json_option
@connection_options
def command(*, words: tuple[str, ...], as_json: bool) -> int:
    """Change jobs that have not ended: priority, time_limit and, while they wait, name.

    \b
    muster set 42 priority=80       reorders the queue at once
    muster set 42 time_limit=36h    also for a running job; `none` removes the limit
    """
    jobs = [word for word in words if "=" not in word]
    pairs = [word.split("=", 1) for word in words if "=" in word]
    changes = dict(pairs)
    if not jobs:
        raise click.UsageError("which job? muster set 42 priority=80")
    if not changes:
        raise click.UsageError("change what? muster set 42 priority=80")
    if len(changes) < len(pairs):
        raise click.UsageError("a key is given twice: keep one of them")
    wanted = {
        key: None if key in _TIME_LIMIT and value in _NOTHING else value
        for key, value in changes.items()
    }
    client = connect()

    def change(number: int) -> JobSummary:
        answer = client.change(number, wanted)
        job = _confirmed(client, answer.job)
        said = "changed" if answer.changed else "unchanged"
        note(f"job {number} {said}; {job.state.value}: {safe(job.reason.text)}")
        if job.limit_pending:
            note(f"job {number}, time limit: {safe(unconfirmed(job.limit_pending))}")
        return job

    return for_each(find_jobs(client, jobs), change, JobList, as_json=as_json)


def _confirmed(client: Client, job: JobSummary) -> JobSummary:
    """Wait shortly until all nodes have confirmed a changed time limit. Returns the job with those
    that have not."""
    until = time.monotonic() + _CONFIRM_S
    while job.limit_pending and time.monotonic() < until:
        time.sleep(_PAUSE_S)
        job = replace(job, limit_pending=client.job(job.id).limit_pending)
    return job

"""`muster release`: let held jobs start."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB
from muster.cli.jobs.bulk import find_jobs, for_each
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option
from muster.http.views import JobList, JobSummary


@click.command("release")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=JOB)
@json_option
@connection_options
def command(*, jobs: tuple[str, ...], as_json: bool) -> int:
    """Release held jobs: they return to their place in the queue."""
    client = connect()

    def release(number: int) -> JobSummary:
        answer = client.change(number, {"hold": False})
        state = f"{answer.job.state.value}: {safe(answer.job.reason.text)}"
        note(f"job {number} {'' if answer.changed else 'is already released, '}{state}")
        return answer.job

    return for_each(find_jobs(client, jobs), release, JobList, as_json=as_json)

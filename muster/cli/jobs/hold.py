"""`muster hold`: keep waiting jobs from starting."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB
from muster.cli.jobs.bulk import find_jobs, for_each
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option
from muster.http.views import JobList, JobSummary


@click.command("hold")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=JOB)
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `muster ps`.")
@json_option
@connection_options
def command(*, jobs: tuple[str, ...], reason: str, as_json: bool) -> int:
    """Keep waiting jobs from starting, until `muster release`.

    Held jobs keep their place in the queue. A running job cannot be held; the command refuses it.
    """
    client = connect()

    def hold(number: int) -> JobSummary:
        answer = client.change(number, {"hold": True, "reason": reason})
        said = "HELD" if answer.changed else f"is already held by {safe(answer.job.held_by)}"
        note(f"job {number} {said}")
        return answer.job

    return for_each(find_jobs(client, jobs), hold, JobList, as_json=as_json)

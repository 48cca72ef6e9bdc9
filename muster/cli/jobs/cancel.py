"""`muster cancel`: stop jobs. Repeating it does no harm."""

from __future__ import annotations

import sys

import click

from muster.cli.client_options import connect, connection_options, detaching
from muster.cli.errors import explain_error
from muster.cli.input.job_ref import JOB
from muster.cli.input.param_types import DURATION
from muster.cli.jobs.bulk import find_jobs
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.client import Client, ClientError
from muster.http.job_actions import CancelAnswer
from muster.http.views import JobList
from muster.protocol.outcome import EXIT_CLIENT


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=JOB)
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `muster show`.")
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    metavar="TIME",
    help="Time between the stop signal and SIGKILL (default: the job's).",
)
@click.option("--force", is_flag=True, help="Send SIGKILL at once.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the jobs have ended.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@connection_options
def command(
    *,
    jobs: tuple[str, ...],
    reason: str,
    grace_s: float | None,
    force: bool,
    waits: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Stop running jobs, and remove waiting jobs from the queue.

    Cancelling a job that has ended changes nothing and is not an error. If a job is already being
    stopped, --grace shortens the rest of its grace period and --force ends it at once. At a
    terminal, cancelling several jobs asks for confirmation.
    """
    client = connect()
    numbers = find_jobs(client, jobs)
    if len(numbers) > 1 and not yes and sys.stdin.isatty() and not _sure(client, numbers):
        note("nothing was cancelled")
        return EXIT_CLIENT
    answers, failed = _cancel_each(client, numbers, reason, grace_s, force=force)
    jobs_now = [answer.job for answer in answers]
    stopping = [answer.job.id for answer in answers if not answer.already_ended]
    if waits:
        with detaching(*stopping, doing="wait"):
            for number in stopping:
                summary = client.wait(number)
                note(f"job {number} {summary.state.value}")
                jobs_now = [summary if job.id == number else job for job in jobs_now]
    if as_json:
        print_json(JobList(tuple(jobs_now)))
    return EXIT_CLIENT if failed else 0


def _sure(client: Client, numbers: list[int]) -> bool:
    """List the jobs and ask for confirmation, on stderr, as stdout is for programs."""
    views = [client.job(number) for number in numbers]
    for view in views:
        note(f"job {view.id} {safe(view.name)} of {safe(view.user)}: {view.state.value}")
    return click.confirm(f"cancel these {len(views)} jobs?", default=False, err=True)


def _cancel_each(
    client: Client, numbers: list[int], reason: str, grace_s: float | None, *, force: bool
) -> tuple[list[CancelAnswer], bool]:
    """Cancel each job. Returns the answers, and whether any cancel failed; a failure does not stop
    the others."""
    answers: list[CancelAnswer] = []
    failed = False
    for number in numbers:
        try:
            answer = client.cancel(number, reason=reason, grace_s=grace_s, force=force)
        except ClientError as error:
            note(explain_error(error).text)
            failed = True
            continue
        answers.append(answer)
        state = answer.job.state.value
        if answer.already_ended:
            note(f"job {number} had already ended: {state}")
        else:
            note(f"job {number} {state}" + (f": {safe(answer.note)}" if answer.note else ""))
    return answers, failed

"""`muster cancel`: stop jobs, as often as one likes."""

from __future__ import annotations

import click

from muster.cli.arguments import DURATION
from muster.cli.complaints import complain
from muster.cli.connection import connect, connection_options, detaching
from muster.cli.json_output import json_option, print_json
from muster.cli.reference import JOB, find_job
from muster.cli.text import note
from muster.client import Client, ClientError
from muster.protocol.http import CancelAnswer, JobList
from muster.protocol.outcome import EXIT_CLIENT


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=JOB)
@click.option("--reason", default="", metavar="TEXT", help="Why; shown by `muster show`.")
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    metavar="TIME",
    help="Time between the stop signal and SIGKILL, instead of the job's own.",
)
@click.option("--force", is_flag=True, help="SIGKILL at once.")
@click.option("--wait", "waits", is_flag=True, help="Return when the jobs have ended.")
@json_option
@connection_options
def command(
    *,
    jobs: tuple[str, ...],
    reason: str,
    grace_s: float | None,
    force: bool,
    waits: bool,
    as_json: bool,
) -> int:
    """Stop jobs that run, and take out of the queue those that wait.

    Cancelling a job that has ended changes nothing and is no error.
    """
    client = connect()
    # All names first: what `last` means must not change half-way.
    numbers = [find_job(client, job) for job in jobs]
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


def _cancel_each(
    client: Client, numbers: list[int], reason: str, grace_s: float | None, *, force: bool
) -> tuple[list[CancelAnswer], bool]:
    """What was answered, and whether any could not be cancelled: one does not keep the rest."""
    answers: list[CancelAnswer] = []
    failed = False
    for number in numbers:
        try:
            answer = client.cancel(number, reason=reason, grace_s=grace_s, force=force)
        except ClientError as error:
            note(complain(error).text)
            failed = True
            continue
        answers.append(answer)
        state = answer.job.state.value
        note(f"job {number} {'had already ended: ' if answer.already_ended else ''}{state}")
    return answers, failed

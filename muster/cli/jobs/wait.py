"""`muster wait`: wait until jobs end, and exit with their code."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import click

from muster.cli.client_options import connect, connection_options, detaching
from muster.cli.errors import DetachedError, RefusedError
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.input.param_types import DURATION
from muster.cli.output.format import note, safe, span
from muster.cli.output.json_output import json_option, print_json
from muster.client import Client
from muster.http.views import JobList, JobSummary
from muster.protocol.outcome import EXIT_CLIENT
from muster.protocol.states import ENDED_STATES


@click.command("wait")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=JOB)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    metavar="TIME",
    help="Give up after this time (1h, 90m) with exit code 125; the jobs continue.",
)
@click.option(
    "--any", "first", is_flag=True, help="Wait for the first job that ends, and exit with its code."
)
@json_option
@connection_options
def command(*, jobs: tuple[str, ...], timeout_s: float | None, first: bool, as_json: bool) -> int:
    """Wait until all jobs have ended.

    Exits with the first code that is not 0, in the order in which the jobs are named.
    """
    client = connect()
    numbers = [find_job(client, job) for job in jobs]
    for number in numbers[1:]:
        client.job(number)  # report a missing job now, not after the others have ended
    with detaching(*numbers, doing="wait"):
        if first and len(numbers) > 1:
            ended = [_note_end(_first_ended(client, numbers, timeout_s))]
        else:
            ended = list(_each_ended(client, numbers, timeout_s))
    if as_json:
        with suppress(BrokenPipeError):  # the exit code is returned even if nobody reads the output
            print_json(JobList(tuple(ended)))
    return first_code(ended)


def wait_for_all(client: Client, jobs: list[int]) -> int:
    """Wait for all jobs, print how each ended, and return the first exit code that is not 0."""
    return first_code(list(_each_ended(client, jobs, None)))


def print_and_wait(
    client: Client, job: JobSummary, *, waits: bool, follow: bool, as_json: bool
) -> int:
    """Print a job that was just submitted, then follow it or wait for it as asked, and return the
    exit code: the job's own, or 0 without a wait. The JSON of a job that is waited for comes after
    its end."""
    with suppress(BrokenPipeError):
        if not as_json:
            print(job.id, flush=True)
        elif not waits:
            print_json(job)
    exit_code = _stay(client, job.id, waits=waits, follow=follow)
    if as_json and waits:
        with suppress(BrokenPipeError):
            print_json(client.job(job.id))
    return exit_code


def _stay(client: Client, job: int, *, waits: bool, follow: bool) -> int:
    """Follow a job, or wait for it, and return its exit code. Returns 0 at once if neither is asked
    for."""
    if follow:
        from muster.cli.jobs.logs import show_logs
        from muster.client import LogQuery

        # Start at the first byte, because none of the output has been shown yet.
        query = LogQuery(follow=True, rank=0)
        code = code_though_unread(client, job, lambda: show_logs(client, job, query, hint=True))
        return EXIT_CLIENT if code is None else code
    if waits:
        with detaching(job):
            return wait_for_all(client, [job])
    return 0


def _each_ended(client: Client, jobs: list[int], timeout_s: float | None) -> Iterator[JobSummary]:
    """Yield the ended jobs in their order. Raises RefusedError at the timeout."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for job in jobs:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        summary = client.wait(job, left)
        if summary.state not in ENDED_STATES:
            raise _timed_out([job], timeout_s)
        yield _note_end(summary)


def first_code(ended: list[JobSummary]) -> int:
    """Return the first exit code that is not 0, or 0."""
    return next((code for code in map(exit_code, ended) if code), 0)


def _note_end(summary: JobSummary) -> JobSummary:
    note(ending(summary))
    return summary


def ending(summary: JobSummary) -> str:
    """Describe how a job ended, in one sentence."""
    reason = f": {safe(summary.reason.text)}" if summary.reason.text else ""
    code = f" (exit code {summary.exit_code})" if summary.exit_code else ""
    return f"job {summary.id} {summary.state.value}{reason}{code}"


def exit_code(summary: JobSummary) -> int:
    """Return the job's exit code; EXIT_CLIENT if the answer lacks it, which is a coordinator
    error."""
    return EXIT_CLIENT if summary.exit_code is None else summary.exit_code


def code_though_unread(client: Client, job: int, show: Callable[[], int | None]) -> int | None:
    """Return the result of `show`, which prints the job's output. If nobody reads that any more,
    return the job's exit code, or raise DetachedError if the job still runs."""
    try:
        return show()
    except BrokenPipeError:
        view = client.job(job)
    if view.state in ENDED_STATES:
        return exit_code(view)
    raise DetachedError(
        f"the output was closed; job {job} continues: muster attach {job} | muster cancel {job}"
    )


def _timed_out(jobs: list[int], timeout_s: float | None) -> RefusedError:
    which = f"job {jobs[0]} has" if len(jobs) == 1 else f"none of the {len(jobs)} jobs has"
    return RefusedError(f"{which} not ended after {span(timeout_s or 0)}; nothing was stopped")


def _first_ended(client: Client, jobs: list[int], timeout_s: float | None) -> JobSummary:
    """Return the job that ends first. Long-polls each job in a daemon thread, which ends with the
    process."""
    ended = [(view.ended_at, view) for view in map(client.job, jobs) if view.ended_at is not None]
    if ended:
        return min(ended, key=lambda pair: pair[0])[1]
    answers: queue.SimpleQueue[JobSummary | Exception] = queue.SimpleQueue()

    def ask(job: int) -> None:
        try:
            answers.put(client.wait(job, timeout_s))
        except Exception as error:  # noqa: BLE001 - handed to the main thread
            answers.put(error)

    for job in jobs:
        threading.Thread(target=ask, args=(job,), name=f"wait {job}", daemon=True).start()
    for _ in jobs:
        answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        if answer.state in ENDED_STATES:
            return answer
    raise _timed_out(jobs, timeout_s)

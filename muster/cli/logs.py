"""`muster logs`: what a job writes, as it wrote it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

import click

from muster.cli.complaints import RefusedError
from muster.cli.connection import connect, connection_options, detaching
from muster.cli.log_lines import LogPrinter
from muster.cli.reference import JOB, find_job
from muster.cli.text import note, safe
from muster.cli.wait import ending, exit_code
from muster.client import Client, LogQuery
from muster.protocol.http import JobView, LogTrailer
from muster.protocol.states import ENDED_STATES, JobState

TAIL_WHEN_FOLLOWING: Final = 10
_TAIL_OF_ERRORS: Final = 30
# What torchrun says of a gang that ends well is noise: the launcher that is first to leave takes
# the store with it. Its lines are shown with --node, and where no rank said why a job failed.
_OF_THE_JOB: Final = "stdout,stderr,setup"
_NOT_SOON: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.RETRYING})


class CountOrAll(click.ParamType[int | None]):
    """A number from `least`, or `all`, which is None."""

    name = "N|all"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value is None or isinstance(value, int):
            return value
        if value == "all":
            return None
        if not (str(value).isascii() and str(value).isdecimal()):
            self.fail(f"{value!r} is neither a number from 0 nor `all`", param, ctx)
        return int(value)


@click.command("logs")
@click.argument("job", metavar="JOB", type=JOB)
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job ends; Ctrl-C only detaches."
)
@click.option(
    "--rank",
    "rank",
    metavar="R|all",
    help="This rank, or all of them. Without it: rank 0, and the errors of the rank that failed.",
)
@click.option("--node", metavar="NODE", help="Only what was written on this node.")
@click.option("--stdout", "stream", flag_value="stdout", help="Only standard output.")
@click.option("--stderr", "stream", flag_value="stderr", help="Only standard error.")
@click.option("--attempt", type=click.IntRange(1), help="This attempt instead of the last one.")
@click.option(
    "--tail", metavar="N|all", help="Begin with the last N lines: 10 with -f, else all of them."
)
@click.option("--no-prefix", is_flag=True, help="No `[node rN]` before the lines of several ranks.")
@click.option("--exit-status", is_flag=True, help="Exit with the job's code once it has ended.")
@connection_options
def command(
    *,
    job: str,
    follow: bool,
    rank: str | None,
    node: str | None,
    stream: str | None,
    attempt: int | None,
    tail: str | None,
    no_prefix: bool,
    exit_status: bool,
) -> int:
    """Print what a job writes, standard error on standard error.

    With --rank all, or --node, each line of several ranks begins with `[node rN]`.
    """
    lines = TAIL_WHEN_FOLLOWING if tail is None and follow else COUNT.convert(tail, None, None)
    chosen = None if node is not None and rank is None else _rank(rank)
    if chosen is None and node is None and stream is None:
        stream = _OF_THE_JOB
    query = LogQuery(follow, chosen, node, stream, attempt, lines)
    client = connect()
    number = find_job(client, job)
    code = show_logs(
        client, number, query, prefix=not no_prefix, others=rank is None and node is None
    )
    if not exit_status:
        return 0
    if code is None:
        raise RefusedError(f"job {number} has not ended: -f waits for its exit code")
    return code


COUNT: Final = CountOrAll()


def _rank(text: str | None) -> int | None:
    return 0 if text is None else COUNT.convert(text, None, None)


def show_logs(
    client: Client, job: int, query: LogQuery, *, prefix: bool = True, others: bool = True
) -> int | None:
    """Print the logs that `query` asks for, and with `others` the errors of the rank that ended
    the job if it is another. Returns the job's exit code, None if it has not ended; Ctrl-C while
    following raises DetachedError.
    """
    view = client.job(job)
    if query.follow and view.state in _NOT_SOON:
        why = f" ({safe(view.reason.text)})" if view.reason.text else ""
        note(f"job {job} is {view.state.value}{why}; its logs begin when it starts")
    if others and query.rank == 0 and view.nodes > 1 and sys.stderr.isatty():
        note(f"rank 0 only; every rank: muster logs --rank all {job}")
    alone = query.rank is not None or _one_rank(view)
    printer = _printer(alone=alone, prefix=prefix)
    if not query.follow:
        # Without an attempt the coordinator gives all of them, which is right for following only.
        query = replace(query, attempt=query.attempt or view.attempt or None)
        return _print_all(client, job, query, printer, others=others)
    with detaching(job):
        return _print_all(client, job, query, printer, others=others)


def _printer(*, alone: bool = False, prefix: bool = True) -> LogPrinter:
    return LogPrinter(sys.stdout.buffer, sys.stderr.buffer, alone=alone, prefix=prefix)


def _print_all(
    client: Client, job: int, query: LogQuery, printer: LogPrinter, *, others: bool
) -> int | None:
    printed = _print_records(client, job, query, printer)
    if query.follow and query.attempt is None:
        client.wait(job)  # the last byte may be there a moment before the end is
    view = client.job(job)
    if not printed:
        _refuse_unknown(view, query)
    if view.state not in ENDED_STATES:
        return None
    if others and view.exit_code:
        _print_errors_of_others(client, view, query)
    if query.follow:
        note(ending(view))
    return exit_code(view)


def _refuse_unknown(view: JobView, query: LogQuery) -> None:
    """Nothing came: of an attempt, a rank or a node that the job does not have, say so."""
    last = max((attempt.number for attempt in view.attempts), default=0)
    if query.attempt is not None and 0 < last < query.attempt:
        raise RefusedError(f"job {view.id} has no attempt {query.attempt}: {last} was the last")
    tasks = [task for attempt in view.attempts for task in attempt.tasks]
    nodes = sorted({task.node for task in tasks})
    if query.node is not None and nodes and query.node not in nodes:
        raise RefusedError(f"job {view.id} has no node {safe(query.node)}, only {', '.join(nodes)}")
    ranks = sorted({rank.rank for task in tasks for rank in task.ranks})
    if query.rank is not None and ranks and query.rank not in ranks:
        raise RefusedError(f"job {view.id} has no rank {query.rank}: 0 to {ranks[-1]} are there")


def _print_records(client: Client, job: int, query: LogQuery, printer: LogPrinter) -> bool:
    """Print what comes; False where there was nothing."""
    attempt: int | None = None
    try:
        for entry in client.logs(job, query):
            if isinstance(entry, LogTrailer):
                if entry.reason:
                    note(safe(entry.reason))
                continue
            if attempt is not None and entry.attempt != attempt:
                note(f"attempt {entry.attempt} of job {job}")
            attempt = entry.attempt
            printer.write(entry)
    finally:
        printer.finish()
    return attempt is not None


def _print_errors_of_others(client: Client, view: JobView, query: LogQuery) -> None:
    """What the rank that ended the job had to say, or the launcher where no rank began to."""
    attempt = next((a for a in reversed(view.attempts) if a.cause is not None), None)
    if attempt is None or attempt.cause is None or query.stream == "stdout":
        return
    cause = attempt.cause
    if cause.node is None or (cause.rank is not None and cause.rank == query.rank):
        return
    for stream in ("setup", "launcher") if cause.rank is None else ("stderr",):
        about = LogQuery(False, cause.rank, cause.node, stream, attempt.number, _TAIL_OF_ERRORS)
        _print_records(client, view.id, about, _printer())


def _one_rank(view: JobView) -> bool:
    """Whether only one rank can have written: only then is no prefix needed."""
    if view.nodes > 1:
        return False
    ranks = [len(task.ranks) for attempt in view.attempts for task in attempt.tasks]
    return bool(ranks) and max(ranks) == 1

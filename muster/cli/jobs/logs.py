"""`muster logs`: print or follow the output of a job."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from muster.cli.client_options import connect, connection_options, detaching
from muster.cli.errors import RefusedError
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.input.param_types import All, CountOrAll, number_of
from muster.cli.jobs.wait import code_though_unread, ending, exit_code
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.log_hints import has_more_ranks, nothing_written, refuse_rank, refuse_unknown
from muster.cli.output.log_json import print_records
from muster.cli.output.log_printer import LogPrinter, LogStyle
from muster.client import Client, LogQuery
from muster.http.views import ATTEMPT_MAX, RANK_MAX, TAIL_MAX, JobView, LogRecord, LogTrailer
from muster.protocol.states import ENDED_STATES, JobState
from muster.protocol.timestamp import moment
from muster.spec.errors import InvalidValueError as SpanError

TAIL_WHEN_FOLLOWING: Final = 10
_TAIL_OF_ERRORS: Final = 30
# Leave out torchrun's output by default: even if a gang ends well, the other nodes complain when
# the launcher's node closes the store. It is shown with --node, or if no rank says why a job
# failed.
_OF_THE_JOB: Final = "stdout,stderr,setup"
_OF_A_NODE: Final = "stdout,stderr,launcher,setup"
_NOT_SOON: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.RETRYING})


class Pattern(click.ParamType["re.Pattern[str]"]):
    """A regular expression."""

    name = "re"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> re.Pattern[str]:
        try:
            return re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            self.fail(f"{value!r} is not a valid regular expression: {error}", param, ctx)


class Since(click.ParamType[str]):
    """A time in RFC 3339, or a time span before now; passed to the coordinator as given."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            moment(str(value), 0.0)
        except SpanError as refused:
            self.fail(f"{value!r} {refused.message}; {refused.hint}", param, ctx)
        return str(value)


@click.command("logs")
@click.argument("job", metavar="JOB", type=JOB)
@click.option(
    "-f", "--follow", is_flag=True, help="Follow until the job ends; Ctrl-C only detaches."
)
@click.option(
    "--rank",
    type=CountOrAll(RANK_MAX),
    metavar="R|all",
    help="This rank, or all (default: rank 0, and the errors of the rank that failed).",
)
@click.option("--node", metavar="NODE", help="Only the output on this node.")
@click.option("--stdout", is_flag=True, help="Only standard output; with --stderr, both.")
@click.option("--stderr", is_flag=True, help="Only standard error.")
@click.option(
    "--nccl", is_flag=True, help="NCCL's log lines, which Muster stores separately from the output."
)
@click.option(
    "--attempt",
    type=click.IntRange(1, ATTEMPT_MAX),
    help="This attempt instead of the last one.",
)
@click.option("--previous", is_flag=True, help="The attempt before the last one.")
@click.option(
    "--tail",
    type=CountOrAll(TAIL_MAX),
    metavar="N|all",
    help="Begin with the last N lines (default: 10 with -f, else all).",
)
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Only output since this time: 10m, or 2026-11-22T01:30:00Z.",
)
@click.option(
    "--grep",
    type=Pattern(),
    metavar="RE",
    help="Only lines that match this regular expression.",
)
@click.option(
    "--timestamps", is_flag=True, help="Begin each line with the time at which it was read (UTC)."
)
@click.option(
    "--no-prefix", is_flag=True, help="Omit the prefix `[node rN]` from lines of several ranks."
)
@click.option(
    "--raw", is_flag=True, help="Send the job's bytes to a terminal unchanged, with escapes."
)
@click.option(
    "--download",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every stream of all attempts to a file of its own in DIR, and print their names. "
    "A repeated command continues there.",
)
@click.option("--exit-status", is_flag=True, help="Exit with the job's code once it has ended.")
@json_option
@connection_options
def command(
    *,
    job: str,
    follow: bool,
    rank: int | All | None,
    node: str | None,
    stdout: bool,
    stderr: bool,
    nccl: bool,
    attempt: int | None,
    previous: bool,
    tail: int | All | None,
    since: str | None,
    grep: re.Pattern[str] | None,
    timestamps: bool,
    no_prefix: bool,
    raw: bool,
    folder: Path | None,
    exit_status: bool,
    as_json: bool,
) -> int:
    """Print the output of a job; its standard error goes to standard error.

    With --rank all or --node, each line of several ranks begins with `[node rN]`.

    In a pipe or a file, the output of a single rank is byte-exact. On a terminal, colours and
    carriage returns work; other escapes and control characters are spelled out (`\\x1b`), because a
    log could take over the terminal. --raw passes everything. With --json, prints the API's log
    records and a trailer, one per line.
    """
    if previous and attempt is not None:
        raise click.UsageError("--attempt and --previous exclude each other")
    if as_json:
        _refuse_styles(grep=grep, timestamps=timestamps, no_prefix=no_prefix, raw=raw)
    lines = TAIL_WHEN_FOLLOWING if tail is None and follow else number_of(tail)
    if nccl and (rank is not None or stdout or stderr):
        raise click.UsageError(
            "--nccl applies to a whole node: select with --node, not a rank or stream"
        )
    stream = ",".join(["stdout"] * stdout + ["stderr"] * stderr) or ("nccl" if nccl else None)
    whole = node is not None or nccl
    if folder is not None:
        shown = {
            "--tail": tail is not None,
            "--since": since,
            "--grep": grep,
            "--timestamps": timestamps,
        }
        if wrong := [name for name, given in shown.items() if given]:
            raise click.UsageError(f"--download takes whole streams: leave out {', '.join(wrong)}")
        chosen, lines = number_of(rank), None
    else:
        chosen = 0 if rank is None and not whole else number_of(rank)
        if chosen is None and stream is None:
            stream = _OF_THE_JOB if node is None else _OF_A_NODE
    client = connect()
    number = find_job(client, job)
    if previous:
        attempt = _previous(client.job(number))
    query = LogQuery(follow, chosen, node, stream, attempt, lines, since)

    def show() -> int | None:
        if folder is not None or as_json:
            code, missing = (
                print_records(client, number, _last_attempt(client, number, query))
                if folder is None
                else _download(client, number, query, folder, as_json=as_json)
            )
            if missing and not exit_status:
                raise RefusedError(f"the logs of job {number} are not complete: {safe(missing)}")
            return code
        look = LogStyle(prefix=not no_prefix, timestamps=timestamps, raw=raw, grep=grep)
        others = rank is None and not whole
        return show_logs(client, number, query, look=look, others=others, strict=not exit_status)

    if not exit_status:
        show()
        return 0
    code = code_though_unread(client, number, show)
    if code is None:
        raise RefusedError(f"job {number} has not ended: -f waits for its exit code")
    return code


def _refuse_styles(**styles: object) -> None:
    if wrong := ["--" + name.replace("_", "-") for name, given in styles.items() if given]:
        raise click.UsageError(f"--json prints unchanged records: leave out {', '.join(wrong)}")


def _last_attempt(client: Client, job: int, query: LogQuery) -> LogQuery:
    """Choose the last attempt. Without an attempt the coordinator returns all of them, which is
    right for following only."""
    if query.follow or query.attempt is not None:
        return query
    return replace(query, attempt=client.job(job).attempt or None)


def _previous(view: JobView) -> int:
    if len(view.attempts) < 2:
        raise RefusedError(f"job {view.id} has no earlier attempt: it was tried once")
    return view.attempts[-2].number


def _download(
    client: Client, job: int, query: LogQuery, folder: Path, *, as_json: bool
) -> tuple[int | None, str]:
    """Write the streams and print the names of their files. Returns the job's exit code (None if it
    has not ended) and the trailer's message about missing bytes."""
    from muster.cli.jobs.log_download import download

    view = client.job(job)
    with detaching(job) if query.follow else nullcontext():
        files, missing = download(client, view, query, folder)
    if as_json:
        print_json({"files": [str(path) for path in files]})
    else:
        for path in files:
            print(path)
    view = client.job(job)
    return (exit_code(view) if view.state in ENDED_STATES else None), missing


def show_logs(
    client: Client,
    job: int,
    query: LogQuery,
    *,
    look: LogStyle | None = None,
    others: bool = True,
    strict: bool = False,
    hint: bool | None = None,
) -> int | None:
    """Print the logs that `query` selects. With `others`, also print the errors of the rank that
    ended the job, if it is another one. `hint`: say how to see the other ranks; if None, on a
    terminal only.

    Returns the job's exit code, or None if it has not ended. Ctrl-C while following raises
    DetachedError. If logs are missing, prints a note or, with `strict`, raises RefusedError.
    """
    view = client.job(job)
    refuse_rank(view, query.rank)
    if query.follow and view.state in _NOT_SOON:
        why = f" ({safe(view.reason.text)})" if view.reason.text else ""
        note(f"job {job} is {view.state.value}{why}; its logs begin when it starts")
    if query.follow and not view.attempt:
        # Because the job has not started, all of its output is new, even if the coordinator is away
        # when it starts.
        query = replace(query, tail=None)
    hints = others and query.rank == 0 and (sys.stderr.isatty() if hint is None else hint)
    hinted = hints and _hint_ranks(view)
    if query.since is not None and client.server_time is not None:
        # Resolve a span to a fixed time, because it would mean another time after a reconnect.
        since = moment(query.since, client.server_time.timestamp())
        query = replace(query, since=datetime.fromtimestamp(since, UTC).isoformat())
    alone = query.rank is not None or _one_rank(view)
    printer = _printer(look or LogStyle(), alone=alone)
    if not query.follow:
        # Without an attempt the coordinator returns all of them, which is right for following only.
        query = replace(query, attempt=query.attempt or view.attempt or None)
        code = _print_all(client, job, query, printer, look or LogStyle(), others=others)
    else:
        with detaching(job):
            code = _print_all(
                client,
                job,
                query,
                printer,
                look or LogStyle(),
                others=others,
                hint=hints and not hinted,
            )
    if strict and printer.missing:
        raise RefusedError(f"the logs of job {job} are not complete: {printer.missing}")
    return code


def _hint_ranks(view: JobView) -> bool:
    """Say how to see the other ranks, if there are any. Returns True if it did."""
    if not has_more_ranks(view):
        return False
    note(f"rank 0 only; every rank: muster logs --rank all {view.id}")
    return True


def _printer(look: LogStyle, *, alone: bool = False) -> LogPrinter:
    return LogPrinter(sys.stdout.buffer, sys.stderr.buffer, alone=alone, look=look)


def _print_all(
    client: Client,
    job: int,
    query: LogQuery,
    printer: LogPrinter,
    look: LogStyle,
    *,
    others: bool,
    hint: bool = False,
) -> int | None:
    printed = _print_records(client, job, query, printer)
    if query.follow and query.attempt is None:
        client.wait(job)  # the last byte may arrive just before the job ends
    view = client.job(job)
    if not printed:
        refuse_unknown(view, query)
        if query.tail != 0:
            note(nothing_written(view, query))
    if view.state not in ENDED_STATES:
        return None
    if hint:
        # The number of ranks may depend on the node, which was not known before.
        _hint_ranks(view)
    if others and view.exit_code:
        _print_errors_of_others(client, view, query, look)
    if query.follow:
        note(ending(view))
    return exit_code(view)


def _print_records(client: Client, job: int, query: LogQuery, printer: LogPrinter) -> bool:
    """Print records as they arrive. Returns False if there were none and none are known to be
    missing."""
    attempt: int | None = None
    gap = False
    try:
        for entry in client.logs(job, query):
            if isinstance(entry, LogTrailer):
                printer.missing = safe(entry.reason or "")
                if entry.reason:
                    printer.end_line()
                    note(printer.missing)
                continue
            if entry.gap is not None:
                gap = True
                printer.end_line()
                note(f"{_where(entry)} from byte {entry.offset} on: {safe(entry.gap)}")
                continue
            if attempt is not None and entry.attempt != attempt:
                printer.begin_attempt(entry.attempt)
                note(f"attempt {entry.attempt} of job {job}")
            attempt = entry.attempt
            printer.write(entry)
    except BaseException:
        # Because Ctrl-C also ends the reader of a pipe, flush before the message about it.
        with suppress(OSError):
            printer.finish()
        raise
    printer.finish()
    return attempt is not None or gap or bool(printer.missing)


def _print_errors_of_others(client: Client, view: JobView, query: LogQuery, look: LogStyle) -> None:
    """Print the errors of the rank that ended the job, or the launcher's if no rank did."""
    attempt = next((a for a in reversed(view.attempts) if a.cause is not None), None)
    if attempt is None or attempt.cause is None or query.stream == "stdout":
        return
    cause = attempt.cause
    if cause.node is None or (cause.rank is not None and cause.rank == query.rank):
        return
    for stream in ("setup", "launcher") if cause.rank is None else ("stderr",):
        about = LogQuery(False, cause.rank, cause.node, stream, attempt.number, _TAIL_OF_ERRORS)
        # Because these are lines of another rank, always show the prefix.
        _print_records(client, view.id, about, _printer(replace(look, prefix=True)))


def _where(record: LogRecord) -> str:
    whose = record.stream if record.rank is None else f"r{record.rank} {record.stream}"
    return safe(f"[{record.node} {whose}]")


def _one_rank(view: JobView) -> bool:
    """True if only one rank can have written, so that lines need no prefix."""
    if (view.max_nodes or view.nodes) > 1:
        return False
    ranks = [len(task.ranks) for attempt in view.attempts for task in attempt.tasks]
    return bool(ranks) and max(ranks) == 1

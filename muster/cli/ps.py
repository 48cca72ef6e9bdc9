"""`muster ps`: the jobs, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from muster.cli.connection import connect, connection_options
from muster.cli.json_output import print_json
from muster.cli.table import Cell, Column, print_table
from muster.cli.text import coloured, note, span
from muster.client import Client
from muster.protocol.http import JobList, JobSummary
from muster.protocol.states import ENDED_STATES, JobState

_DEFAULT_COUNT: Final = 100
_PAGE: Final = 1000
_OPEN_STATES: Final = tuple(state for state in JobState if state not in ENDED_STATES)
_COLUMNS: Final = (
    Column("ID", right=True),
    Column("NAME"),
    Column("USER"),
    Column("STATE"),
    Column("NODES", right=True),
    Column("TIME", right=True),
    Column("REASON", elastic=True),
)


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="Ended jobs too.")
@click.option(
    "-n", "count", type=click.IntRange(1), help="The newest N jobs, ended ones too (with -a: 100)."
)
@click.option("--user", metavar="NAME", help="Only the jobs of this user.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState], case_sensitive=False),
    help="Only jobs in this state; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="As the coordinator's API gives them.")
@connection_options
def command(
    *, everything: bool, count: int | None, user: str | None, states: tuple[str, ...], as_json: bool
) -> None:
    """List jobs: without options those that wait or run.

    TIME is how long a job waits, runs, or ran.
    """
    client = connect()
    wanted = tuple(JobState(state) for state in states)
    if not wanted and not everything and count is None:
        wanted = _OPEN_STATES
    limit = count if count is not None or not everything else _DEFAULT_COUNT
    found = _fetch(client, wanted, user, limit)
    if as_json:
        print_json(found)
    elif found.jobs:
        now = client.server_time
        print_table(_COLUMNS, [_row(job, now) for job in found.jobs])
        if everything and count is None and found.cursor is not None:
            note(f"these are the newest {limit}; -n N lists more")
    elif not (states or everything or count or user):
        note("no job waits or runs; `muster ps -a` lists those that ended")


def _fetch(
    client: Client, states: tuple[JobState, ...], user: str | None, limit: int | None
) -> JobList:
    jobs: list[JobSummary] = []
    cursor: str | None = None
    while True:
        left = _PAGE if limit is None else min(limit - len(jobs), _PAGE)
        page = client.jobs(states=states, user=user, limit=left, cursor=cursor)
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None or len(jobs) == limit:
            return JobList(tuple(jobs), cursor)


def _row(job: JobSummary, now: datetime | None) -> list[str | Cell]:
    return [
        str(job.id),
        job.name,
        job.user,
        Cell(job.state.value, lambda text: coloured(job.state, text)),
        str(job.nodes),
        time_of(job, now),
        job.reason.text,
    ]


def time_of(job: JobSummary, now: datetime | None) -> str:
    """How long a job waits, runs or ran; `-` for what is not known."""
    end = job.ended_at if job.ended_at is not None else now
    begin = job.started_at
    if begin is None:
        begin = job.submitted_at
    return "-" if end is None else span(end - begin)

"""`muster ps`: list jobs, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import coloured, note, safe, span
from muster.cli.output.json_output import json_option, print_json, print_json_line
from muster.cli.output.table import Cell, Column, print_table
from muster.cli.output.watch import View, watch
from muster.http.views import JobList, JobSummary
from muster.protocol.states import ENDED_STATES, JobState

_DEFAULT_COUNT: Final = 100
_OPEN_STATES: Final = tuple(state for state in JobState if state not in ENDED_STATES)
_COLUMNS: Final = (
    Column("ID", right=True),
    Column("NAME", name=True),
    Column("USER", name=True, drop=3),
    Column("STATE"),
    Column("NODES", right=True, drop=2),
    Column("GPUS", right=True, drop=5),
    Column("TIME", right=True, drop=1),
    Column("REASON", elastic=True, drop=4),
)


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="Include ended jobs.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 10**9),
    help="Number of newest jobs, including ended ones (default with -a: 100).",
)
@click.option("--user", metavar="NAME", help="Only the jobs of this user.")
@click.option("--pool", metavar="POOL", help="Only jobs in the queue of this pool.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState], case_sensitive=False),
    help="Only jobs in this state; may be given several times.",
)
@click.option(
    "-w",
    "--watch",
    "watched",
    is_flag=True,
    help="Refresh the list until no job waits or runs, or until Ctrl-C.",
)
@json_option
@connection_options
def command(
    *,
    everything: bool,
    count: int | None,
    user: str | None,
    pool: str | None,
    states: tuple[str, ...],
    watched: bool,
    as_json: bool,
) -> None:
    """List jobs; by default those that wait or run.

    TIME is how long a job has waited, runs, or ran. For an elastic job, NODES shows its current
    number and its range. GPUS counts the GPUs on all of its nodes; `-` if it waits for whole nodes.

    With -w in a pipe, the list is printed again whenever it changes; with --json, as one line each
    time.
    """
    client = connect()
    wanted = tuple(JobState(state) for state in states)
    if not wanted and not everything and count is None:
        wanted = _OPEN_STATES
    limit = count if count is not None or not everything else _DEFAULT_COUNT

    def fetch() -> JobList:
        return client.all_jobs(states=wanted, user=user, pool=pool, limit=limit)

    def show(found: JobList) -> None:
        if found.jobs:
            print_table(_COLUMNS, [_row(job, client.server_time) for job in found.jobs])
            if everything and count is None and found.cursor is not None:
                note(f"these are the newest {limit}; -n N lists more")
        else:
            note(_nothing(user, pool, states, ended=everything or count is not None))

    if watched:
        watch(View(fetch, print_json_line if as_json else show, lambda found: found, _over))
    elif as_json:
        print_json(fetch())
    else:
        show(fetch())


def _nothing(user: str | None, pool: str | None, states: tuple[str, ...], *, ended: bool) -> str:
    """Return the message for an empty list. `ended`: ended jobs were included in the search."""
    whose = f" of user {safe(user)}" if user is not None else ""
    where = f" in pool {safe(pool)}" if pool is not None else ""
    which = f"job{whose}{where}" + ("" if user is None else " that you may see")
    if states:
        return f"no {which} is {' or '.join(states)}"
    if ended:
        return f"there is no {which}"
    return f"no {which} waits or runs; `muster ps -a` lists ended jobs"


def _over(found: JobList) -> bool:
    return all(job.state in ENDED_STATES for job in found.jobs)


def _row(job: JobSummary, now: datetime | None) -> list[str | Cell]:
    return [
        str(job.id),
        job.name,
        job.user,
        Cell(job.state.value, lambda text: coloured(job.state, text)),
        nodes_of(job),
        "-" if job.gpus is None else str(job.gpus),
        time_of(job, now),
        _reason(job, now),
    ]


def _reason(job: JobSummary, now: datetime | None) -> str:
    """Return the reason, after the promised start of a waiting job."""
    if job.starts_by is None or now is None:
        return job.reason.text
    return f"starts within {span(job.starts_by - now)}: {job.reason.text}"


def nodes_of(job: JobSummary) -> str:
    """Return a number such as `4`; for an elastic job `3 of 2..4`, or `2..4` if it has no nodes."""
    if job.max_nodes is None:
        return str(job.nodes)
    bounds = f"{job.nodes}..{job.max_nodes}"
    return bounds if job.nodes_now is None else f"{job.nodes_now} of {bounds}"


def time_of(job: JobSummary, now: datetime | None) -> str:
    """Return how long a job has waited, runs or ran; `-` if unknown."""
    end = job.run_ended_at if job.run_ended_at is not None else now
    begin = job.started_at
    if begin is None:
        begin = job.submitted_at
    return "-" if end is None else span(end - begin)

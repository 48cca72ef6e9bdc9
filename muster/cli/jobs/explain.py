"""`muster explain`: why a job waits, when it starts, or why it ran where it did."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB, NODE, find_job
from muster.cli.input.param_types import DURATION
from muster.cli.output.fabric_view import print_fabric
from muster.cli.output.format import moment, print_line, safe, span
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Cell, Column, print_table
from muster.http.explanation import AttemptStory, Explanation, NodeVerdict
from muster.protocol.text import named
from muster.spec.field_readers import MAX_NODES

_NODES: Final = (
    Column("NODE", name=True),
    Column("NOW"),
    Column("WHY", elastic=True, wraps=True),
    Column("FREE BY", drop=1),
)
_AHEAD: Final = (
    Column("ID", right=True),
    Column("NAME", elastic=True),
    Column("USER", drop=1),
    Column("PRIORITY", right=True),
    Column("NODES", right=True),
)


@click.command("explain")
@click.argument("what", metavar="[rdma] JOB", nargs=-1, required=True, type=JOB)
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    metavar="N",
    help="What if it asked for this number of nodes?",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=DURATION,
    metavar="DURATION",
    help="What if this was its time limit?",
)
@click.option(
    "--after",
    "changes",
    nargs=2,
    multiple=True,
    type=(click.Choice(["drain"]), NODE),
    metavar="drain NODE",
    help="What if this node were drained?",
)
@json_option
@connection_options
def command(
    *,
    what: tuple[str, ...],
    nodes: int | None,
    time_limit_s: float | None,
    changes: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Show why a job waits: its place in the queue, each node's verdict, its latest start by the
    time limits of other jobs, which jobs went ahead, and what would start it sooner.

    For a job that runs or has ended, show where it ran and why, before which waiting jobs it
    started, and what ended it.

    \b
    muster explain 42 --nodes 3               what if it asked for three nodes?
    muster explain 42 --time-limit 1h         what if its time limit was an hour?
    muster explain 42 --after drain gpu-07    what if that node were drained?

    `muster explain rdma JOB`: show why the job has RDMA or not, and the reason for each network
    setting.
    """
    *topic, job = what
    if topic not in ([], ["rdma"]):
        raise click.UsageError("one job, or: muster explain rdma JOB")
    if not topic and job == "rdma":
        raise click.UsageError("rdma of which job? muster explain rdma JOB")
    if topic and (nodes is not None or time_limit_s is not None or changes):
        raise click.UsageError("what-if questions are about a waiting job, not about its RDMA")
    client = connect()
    if topic:
        plan = client.fabric(find_job(client, job))
        if as_json:
            print_json(plan)
        else:
            print_fabric(plan)
        return
    drained = [node for _, node in changes]
    found = client.explain(
        find_job(client, job), nodes=nodes, drained=drained, time_limit_s=time_limit_s
    )
    if as_json:
        print_json(found)
        return
    print_explanation(found, client.server_time)


def print_explanation(found: Explanation, now: datetime | None) -> None:
    """Print an explanation for people. `now` is the coordinator's time."""
    job = found.job
    print(f"job {job.id}  {safe(job.name)}  {job.state.value}")
    if found.supposing:
        print_line(f"{found.supposing}:")
    if found.text:
        print_line(found.text.removeprefix(f"{job.state.value}: "))
    if found.nodes or found.wanted:
        _print_queue(found)
        _print_nodes(found, now)
        _print_when(found, now)
    for story in found.attempts:
        _print_attempt(story)


def _print_queue(found: Explanation) -> None:
    if found.place is None:
        return
    pool = safe(found.job.pool)
    if found.place == 1:
        print(f"  first in the queue of pool {pool}")
        return
    if not found.ahead:
        print(f"  place {found.place} in the queue of pool {pool}, behind jobs of other users")
        return
    print(f"\nplace {found.place} in the queue of pool {pool}, behind")
    print_table(
        _AHEAD,
        [[str(a.id), a.name, a.user, str(a.priority), str(a.nodes)] for a in found.ahead],
    )
    more = found.place - 1 - len(found.ahead)
    if more > 0:
        print(f"and {more} more")


def _print_nodes(found: Explanation, now: datetime | None) -> None:
    usable = sum(verdict.can for verdict in found.nodes) if found.nodes else found.ready
    kept = max(0, found.ready - usable)
    parts = [f"{usable} could be used now"] if usable or not kept else []
    parts += [f"{kept} free, but kept for other jobs"] if kept else []
    print(f"\nneeds {_nodes(found.wanted)}; {', '.join(parts)}")
    if found.nodes:
        print_table(_NODES, [_row(verdict, now) for verdict in found.nodes])


def _row(verdict: NodeVerdict, now: datetime | None) -> list[str | Cell]:
    free_by = "" if verdict.free_by is None else _by(verdict.free_by, now)
    colour = "green" if verdict.can else "red"
    return [
        verdict.node,
        Cell("yes" if verdict.can else "no", lambda text: click.style(text, fg=colour)),
        verdict.reason.text,
        free_by,
    ]


def _print_when(found: Explanation, now: datetime | None) -> None:
    if found.starts_now:
        print("\nwould start now" if found.supposing else "\nstarts now")
    elif found.starts_by is not None:
        because = f": {found.forecast}" if found.forecast else ""
        print()
        print_line(f"starts by {_by(found.starts_by, now)} at the latest{because}", indent="")
    elif found.forecast:
        print()
        print_line(f"starts: {found.forecast}", indent="")
    for it in found.went_ahead:
        print_line(f"job {it.id} went ahead on {named(it.nodes)}: {it.why}")
    for hint in found.hints:
        print_line(hint)


def _print_attempt(story: AttemptStory) -> None:
    print()
    print_line(f"attempt {story.number} on {', '.join(story.nodes)}", indent="")
    labelled = (
        ("there", story.placement_reason),
        ("ahead", story.ahead_of),
        ("network", story.network),
        ("fabric", story.fabric),
        ("ended", story.ended),
        ("then", story.then),
    )
    for label, text in labelled:
        if text:
            print_line(text, f"{label:<9}")


def _by(at: datetime, now: datetime | None) -> str:
    return moment(at) if now is None else f"{moment(at)} (in {span(at - now)})"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"

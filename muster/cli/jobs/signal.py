"""`muster signal`: send a signal to the ranks of a running job."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB, NODE, find_job
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.http.views import RANK_MAX
from muster.protocol.text import named


@click.command("signal")
@click.argument("job", metavar="JOB", type=JOB)
@click.argument("signal", metavar="SIGNAL")
@click.option("--rank", type=click.IntRange(0, RANK_MAX), metavar="R", help="Only to this rank.")
@click.option("--node", metavar="NODE", type=NODE, help="Only to the ranks on this node.")
@json_option
@connection_options
def command(*, job: str, signal: str, rank: int | None, node: str | None, as_json: bool) -> None:
    """Send a signal (USR1, SIGUSR1, 10) to the rank processes on all nodes.

    Muster does not stop the job, but the signal may end a rank that has no handler for it. To end a
    job, use `muster cancel`.
    """
    client = connect()
    number = find_job(client, job)
    answer = client.signal(number, signal, rank=rank, node=node)
    whom = "its ranks" if rank is None else f"rank {rank}"
    note(f"job {number}: {answer.signal} to {whom} on {safe(named(answer.nodes))}")
    if answer.away:
        note(f"unreachable now, signalled when back: {safe(named(answer.away))}")
    if as_json:
        print_json(answer)

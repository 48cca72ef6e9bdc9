"""`muster stacks`: show the current stacks of a job's ranks."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.errors import RefusedError
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.stacks_view import heading, stack_lines


@click.command("stacks")
@click.argument("job", metavar="JOB", type=JOB)
@json_option
@connection_options
def command(*, job: str, as_json: bool) -> None:
    """Show the Python stacks of a running job's ranks, without stopping them. Ranks with the same
    stack form one group; the smallest groups come first.

    The nodes need py-spy: `muster doctor` shows whether a node has it.
    """
    client = connect()
    found = client.stacks(find_job(client, job))
    if as_json:
        print_json(found)
    elif found.groups:
        print(heading(found))
        for line in stack_lines(found.groups):
            print(line)
    if not found.groups:
        why = "; ".join(found.notes) or "no node has answered"
        raise RefusedError(f"no stack is available: {safe(why)}")
    for text in found.notes:
        note(safe(text))

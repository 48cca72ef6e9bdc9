"""`muster stacks`: where the ranks of a job stand now."""

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
    """Show where the ranks of a job that runs stand, line by line, ranks at the same lines
    together, those with the fewest first. It stops nobody.

    The nodes need py-spy for it: `muster doctor` there says whether they have it.
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
        raise RefusedError(f"no stack can be had: {safe(why)}")
    for text in found.notes:
        note(safe(text))

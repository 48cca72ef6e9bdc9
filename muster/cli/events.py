"""`muster events`: the journal's facts about one job."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.connection import connect, connection_options
from muster.cli.json_output import json_option, print_json
from muster.cli.reference import JOB, find_job
from muster.cli.table import Column, print_table
from muster.cli.text import moment
from muster.protocol.http import EventList, EventView

_COLUMNS: Final = (
    Column("SEQ", right=True, drop=2),
    Column("TIME", drop=3),
    Column("EVENT", drop=1),
    Column("WHAT", elastic=True, wraps=True),
)


@click.command("events")
@click.argument("job", metavar="JOB", type=JOB)
@json_option
@connection_options
def command(*, job: str, as_json: bool) -> None:
    """List what happened to a job, oldest first."""
    client = connect()
    number = find_job(client, job)
    events: list[EventView] = []
    while page := client.events(number, after=events[-1].seq if events else 0).events:
        events += page
    if as_json:
        print_json(EventList(tuple(events)))
    else:
        rows = [[str(event.seq), moment(event.at), event.kind, event.text] for event in events]
        print_table(_COLUMNS, rows)

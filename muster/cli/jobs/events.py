"""`muster events`: the journal's facts about one job."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.client_options import connect, connection_options, detaching
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.output.format import moment, safe
from muster.cli.output.json_output import json_option, print_json, print_json_line
from muster.cli.output.table import Column, print_table
from muster.cli.output.text_width import paragraph
from muster.http.views import EventList, EventView

_KIND_CELLS: Final = 15
_COLUMNS: Final = (
    Column("SEQ", right=True, drop=2),
    Column("TIME", drop=3),
    Column("EVENT", drop=1),
    Column("WHAT", elastic=True, wraps=True),
)


@click.command("events")
@click.argument("job", metavar="JOB", type=JOB)
@click.option(
    "-f", "--follow", is_flag=True, help="Follow until the job ends; Ctrl-C only detaches."
)
@json_option
@connection_options
def command(*, job: str, follow: bool, as_json: bool) -> None:
    """List what happened to a job, oldest first.

    With -f, prints each event as it arrives; with --json, too, one per line.
    """
    client = connect()
    number = find_job(client, job)
    if follow:
        with detaching(number, doing="events -f"):
            for event in client.follow_events(number):
                (print_json_line if as_json else _print)(event)
        return
    events: list[EventView] = []
    while page := client.events(number, after=events[-1].seq if events else 0).events:
        events += page
    if as_json:
        print_json(EventList(tuple(events)))
    else:
        rows = [[str(event.seq), moment(event.at), event.kind, event.text] for event in events]
        print_table(_COLUMNS, rows)


def _print(event: EventView) -> None:
    """Print one line of the list. Column widths are fixed, because later events are unknown."""
    first = f"{event.seq:>4}  {moment(event.at)}  {safe(event.kind):<{_KIND_CELLS}}  "
    print(paragraph(safe(event.text), first=first), flush=True)

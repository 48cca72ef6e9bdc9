"""`muster audit`: requests that changed something, were refused, or read another's job."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import moment
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.http.audit import AuditEntry

_COLUMNS: Final = (
    Column("TIME"),
    Column("USER"),
    Column("FROM", drop=2),
    Column("TOKEN", drop=3),
    Column("ACTION", drop=1),
    Column("REQUEST", elastic=True),
    Column("SUBJECT", elastic=True),
    Column("RESULT", right=True),
)


@click.command("audit")
@click.option("--user", metavar="NAME", help="Only requests of this user.")
@click.option("--action", metavar="ACTION", help="Only this action, such as job.change or login.")
@click.option("--subject", metavar="NAME", help="Only this job or node.")
@click.option("--since", metavar="TIME", help="Only from this time on: 2h, or RFC 3339.")
@click.option("--refused", is_flag=True, help="Only refused requests.")
@click.option(
    "-n",
    "limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of entries.",
)
@json_option
@connection_options
def command(
    *,
    user: str | None,
    action: str | None,
    subject: str | None,
    since: str | None,
    refused: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List the requests of users, newest last. Needs the role admin."""
    found = connect().audit(
        user=user, action=action, subject=subject, since=since, refused=refused, limit=limit
    )
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [_row(entry) for entry in reversed(found.entries)])


def _row(entry: AuditEntry) -> list[str]:
    times = f" ({entry.count} times)" if entry.count > 1 else ""
    return [
        moment(entry.at),
        entry.user or "-",
        entry.address,
        entry.token or "-",
        f"{entry.action or '-'}{times}",
        f"{entry.method} {entry.route}".strip() or "-",
        entry.subject or "-",
        str(entry.status),
    ]

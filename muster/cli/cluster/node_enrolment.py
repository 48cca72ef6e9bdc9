"""`muster node accept` and `revoke`."""

from __future__ import annotations

import sys

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import NODE
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.client import enrolment as calls
from muster.protocol.outcome import EXIT_CLIENT


@click.command("accept", short_help="Accept a machine that waits to be a node.")
@click.argument("node", metavar="NODE", type=NODE)
@click.option("--reject", is_flag=True, help="Forget the machine instead.")
@json_option
@connection_options
def accept(*, node: str, reject: bool, as_json: bool) -> None:
    """Accept the machine that waits to be NODE. If another machine has the name, it loses it.
    `muster token list --join` shows who waits, and from which address."""
    found = connect().call(calls.accept_node(node, reject=reject))
    note(f"{safe(node)} is {'rejected' if reject else 'accepted'}")
    if as_json:
        print_json(found)


@click.command("revoke", short_help="Accept no certificate of a node any more.")
@click.argument("node", metavar="NODE", type=NODE)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@connection_options
def revoke(*, node: str, yes: bool, as_json: bool) -> int:
    """Accept no certificate of NODE any more: within a second its connections are closed. What runs
    there runs on; to end it first: `muster node drain --now NODE`. NODE may join again, and then
    waits for `muster node accept`."""
    if not yes and sys.stdin.isatty():
        text = f"cut {safe(node)} off?"
        if not click.confirm(text, default=False, err=True):
            note("nothing was revoked")
            return EXIT_CLIENT
    found = connect().call(calls.revoke_node(node))
    note(f"the certificates of {safe(node)} are revoked, and its connections are closed")
    note(
        f"what runs there runs on; `muster ps --node {safe(node)}` shows it. To take the node back:"
    )
    note(f"`muster join` there, then `muster node accept {safe(node)}`")
    if as_json:
        print_json(found)
    return 0

"""`muster nodes`: list the nodes."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import gib, note, painted, safe, span
from muster.cli.output.json_output import json_option, print_json, print_json_line
from muster.cli.output.table import Cell, Column, print_table
from muster.cli.output.watch import View, watch
from muster.http.views import NodeList, NodeView

_COLUMNS: Final = (
    Column("NAME", name=True),
    Column("LINK", drop=1),
    Column("SEEN", right=True, drop=4),
    Column("ADDRESS", drop=6),
    Column("POOL", name=True, drop=3),
    Column("GPUS", right=True, drop=2),
    Column("CPUS", right=True, drop=5),
    Column("MEMORY", right=True, drop=7),
    Column("STATE", elastic=True, wraps=True),
)
_COLOURS: Final = {"connected": "green", "suspect": "yellow", "lost": "red"}


@click.command("nodes")
@click.option("-w", "--watch", "watched", is_flag=True, help="Refresh the list until Ctrl-C.")
@json_option
@connection_options
def command(*, watched: bool, as_json: bool) -> None:
    """List nodes and what they are running. SEEN is the time since the agent's last message, GPUS
    the number in use out of all.

    With -w in a pipe, the list is printed again whenever it changes; with --json, as one line each
    time.
    """
    client = connect()
    if watched:
        show = print_json_line if as_json else _show
        watch(View(client.nodes, show, _without_ages))
    elif as_json:
        print_json(client.nodes())
    else:
        _show(client.nodes())


def _show(found: NodeList) -> None:
    if found.nodes:
        print_table(_COLUMNS, [_row(node) for node in found.nodes])
    else:
        note("no node has joined; run `muster agent` on each")
    if found.held:
        note(safe(found.held))
    for warning in found.warnings:
        note(safe(warning))


def _without_ages(found: NodeList) -> object:
    return [msgspec.structs.replace(node, last_seen_s=None) for node in found.nodes]


def _row(node: NodeView) -> list[str | Cell]:
    return [
        node.name,
        Cell(node.link, painted(_COLOURS.get(node.link))),
        "-" if node.last_seen_s is None else span(node.last_seen_s),
        node.address,
        node.pool,
        gpus_of(node),
        str(node.cpus),
        gib(node.memory_bytes),
        node.state.text or node.state.code,
    ]


def gpus_of(node: NodeView) -> str:
    """Return the GPUs in use, such as `2/8 H100`, or `0` if the node has none."""
    return f"{node.gpus_used}/{node.gpus} {node.gpu_model}".rstrip() if node.gpus else "0"

"""`muster nodes`: what there is to run jobs on."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.connection import connect, connection_options
from muster.cli.json_output import print_json
from muster.cli.table import Column, print_table
from muster.cli.text import gib, note, span
from muster.protocol.http import NodeView

_COLUMNS: Final = (
    Column("NAME"),
    Column("LINK"),
    Column("SEEN", right=True),
    Column("ADDRESS"),
    Column("POOL"),
    Column("GPUS", right=True),
    Column("CPUS", right=True),
    Column("MEMORY", right=True),
    Column("STATE", elastic=True),
)


@click.command("nodes")
@click.option("--json", "as_json", is_flag=True, help="As the coordinator's API gives them.")
@connection_options
def command(*, as_json: bool) -> None:
    """List the nodes. SEEN is how long ago one was last heard of."""
    found = connect().nodes()
    if as_json:
        print_json(found)
    elif found.nodes:
        print_table(_COLUMNS, [_row(node) for node in found.nodes])
    else:
        note("no node has joined; run `muster agent` on each")


def _row(node: NodeView) -> list[str]:
    gpus = f"{node.gpus} {node.gpu_model}".rstrip() if node.gpus else "0"
    return [
        node.name,
        node.link,
        "-" if node.last_seen_s is None else span(node.last_seen_s),
        node.address,
        node.pool,
        gpus,
        str(node.cpus),
        gib(node.memory_bytes),
        node.state.text or node.state.code,
    ]

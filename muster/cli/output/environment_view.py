"""The variables of a job's processes, for `muster show --env`."""

from __future__ import annotations

from typing import Final

from muster.cli.output.format import note, safe
from muster.cli.output.table import Column, print_table
from muster.http.views import EnvironmentView

_COLUMNS: Final = (
    Column("VARIABLE"),
    Column("VALUE", elastic=True, wraps=True),
    Column("FROM"),
)


def print_environment(view: EnvironmentView, asked: str | None) -> None:
    """Print the variables of the first node, which is the one asked for, if any."""
    if view.attempt is None:
        note(f"job {view.job} has had no attempt yet, so its variables are not decided")
        return
    if not view.nodes:
        note(f"node {safe(asked or '')} is not in attempt {view.attempt} of job {view.job}")
        return
    node = view.nodes[0]
    if node.env is None:
        note(f"the variables of {safe(node.node)} are not decided yet: it is still being prepared")
        return
    print_table(
        _COLUMNS,
        [
            [name, value, origin.value if (origin := node.origins.get(name)) else ""]
            for name, value in sorted(node.env.items())
        ],
    )
    others = "" if asked is not None or len(view.nodes) == 1 else "; for another: --node NODE"
    note(
        f"node {safe(node.node)} (node rank {node.node_rank}), attempt {view.attempt}, in addition "
        f"to the login environment{others}"
    )

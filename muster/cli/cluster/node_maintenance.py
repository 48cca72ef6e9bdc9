"""`muster node drain`, `resume`, `remove` and `lost`."""

from __future__ import annotations

import sys

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import NODE
from muster.cli.input.param_types import DURATION
from muster.cli.jobs.bulk import for_each
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option
from muster.client import Client
from muster.http.node_actions import LostAnswer, LostNodes, NodeAnswer
from muster.http.views import NodeList, NodeView
from muster.protocol.outcome import EXIT_CLIENT


@click.command("drain", short_help="Take nodes out of service.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@click.option("--reason", required=True, metavar="TEXT", help="Reason, shown by `muster nodes`.")
@click.option(
    "--deadline",
    "deadline_s",
    type=DURATION,
    metavar="TIME",
    help="Ask jobs that still run after this time (2h) to end.",
)
@click.option("--now", is_flag=True, help="End running jobs at once.")
@click.option(
    "--after-checkpoint",
    is_flag=True,
    help="Ask each job with a `checkpoint_dir` to end after its next checkpoint.",
)
@click.option("-y", "--yes", is_flag=True, help="With --now: do not ask for confirmation.")
@json_option
@connection_options
def drain(
    *,
    nodes: tuple[str, ...],
    reason: str,
    deadline_s: float | None,
    now: bool,
    after_checkpoint: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Take nodes out of service: they get no jobs until `muster node resume`.

    By default, jobs already on the nodes run to their end; --deadline, --now and --after-checkpoint
    end them earlier. With --after-checkpoint, --deadline sets the latest time. A job that has to
    leave is retried elsewhere without using up its retries. Draining again replaces the reason and
    the deadline. A node stays drained through restarts and reboots.
    """
    if now and after_checkpoint:
        raise click.UsageError("--now and --after-checkpoint exclude each other: give one of them")
    if now and deadline_s is not None:
        raise click.UsageError("--now and --deadline exclude each other: give one of them")
    if not reason.strip():
        raise click.UsageError(
            "--reason is empty: give a reason, for those who find the node drained"
        )
    client = connect()
    names = list(dict.fromkeys(nodes))
    if now and not yes and sys.stdin.isatty() and not _sure(client, names):
        note("nothing was drained")
        return EXIT_CLIENT

    def one(name: str) -> NodeView:
        answer = client.drain(
            name, reason, deadline_s=deadline_s, now=now, after_checkpoint=after_checkpoint
        )
        note(_said(answer, "no change"))
        return answer.node

    return for_each(names, one, NodeList, as_json=as_json)


@click.command("resume", short_help="Take nodes back into service.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@click.option("--no-check", is_flag=True, help="Resume even if checks still fail.")
@json_option
@connection_options
def resume(*, nodes: tuple[str, ...], no_check: bool, as_json: bool) -> int:
    """Return nodes to service if their checks pass. If a check fails, its findings are printed and
    the node stays out of service. Resuming clears the failures that led to a quarantine."""
    client = connect()

    def one(name: str) -> NodeView:
        answer = client.resume(name, check=not no_check)
        note(_said(answer, "was in service"))
        return answer.node

    return for_each(list(dict.fromkeys(nodes)), one, NodeList, as_json=as_json)


@click.command("remove", short_help="Remove nodes that are gone.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@json_option
@connection_options
def remove(*, nodes: tuple[str, ...], as_json: bool) -> int:
    """Forget nodes that are gone: `muster nodes` and `muster explain` no longer list them.

    The coordinator refuses to remove a node that is connected or may still run a job. A node that
    joins later under the same name starts in service, without the settings of the old one. With
    --json, prints the nodes as they were.
    """
    client = connect()

    def one(name: str) -> NodeView:
        answer = client.remove(name)
        note(f"{safe(name)} removed")
        return answer.node

    return for_each(list(dict.fromkeys(nodes)), one, NodeList, as_json=as_json)


@click.command("lost", short_help="Declare nodes lost.")
@click.argument("nodes", metavar="[NODE]...", nargs=-1, type=NODE)
@click.option(
    "--awaited", is_flag=True, help="All nodes that the coordinator still awaits after a restore."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@connection_options
def lost(*, nodes: tuple[str, ...], awaited: bool, yes: bool, as_json: bool) -> int:
    """Declare that no process of a job is left on disconnected nodes, such as machines that are
    switched off.

    The coordinator counts their tasks as over, retries the jobs elsewhere, and after a restore does
    not wait for these nodes. If a task still runs there, its job runs twice until the node connects
    again. Afterwards, `muster node remove` forgets a node that is gone for good. Without a terminal
    to ask at, --yes is required.
    """
    if awaited == bool(nodes):
        raise click.UsageError("name nodes, or give --awaited")
    client = connect()
    names = list(client.nodes().awaited if awaited else dict.fromkeys(nodes))
    if not names:
        note("the coordinator waits for no node")
        return 0
    if not yes and not _sure_of_loss(names):
        note("no node was declared lost")
        return EXIT_CLIENT

    def one(name: str) -> LostAnswer:
        answer = client.declare_lost(name)
        note(f"{safe(name)} declared lost{'' if answer.changed else ' (no change)'}")
        return answer

    return for_each(names, one, LostNodes, as_json=as_json)


def _sure_of_loss(names: list[str]) -> bool:
    listed = safe(", ".join(names))
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"a job that still runs on {listed} would run twice: give --yes if nothing of a job "
            "runs there"
        )
    return click.confirm(
        f"a job that still runs on {listed} would run twice; declare {listed} lost?",
        default=False,
        err=True,
    )


def _said(answer: NodeAnswer, unchanged: str) -> str:
    view = answer.node
    before = "" if answer.changed else f" ({unchanged})"
    if f"{view.admin} by " in view.state.text:  # as in "drained by ana: bad DIMM"
        return f"{safe(view.name)}{before}: {safe(view.state.text)}"
    return f"{safe(view.name)} {view.admin}{before}: {safe(view.state.text)}"


def _sure(client: Client, names: list[str]) -> bool:
    """Show what runs on the nodes and ask for confirmation, on stderr, as stdout is for
    programs."""
    for name in names:
        note(f"{safe(name)}: {safe(client.node(name).state.text)}")
    return click.confirm("end the running jobs now?", default=False, err=True)

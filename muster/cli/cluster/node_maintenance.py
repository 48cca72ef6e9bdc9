"""`muster node drain`, `resume` and `remove`: nodes out of service, and back, or forgotten."""

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
from muster.http.node_actions import NodeAnswer
from muster.http.views import NodeList, NodeView
from muster.protocol.outcome import EXIT_CLIENT


@click.command("drain", short_help="Take nodes out of service.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown by `muster nodes`.")
@click.option(
    "--deadline",
    "deadline_s",
    type=DURATION,
    metavar="TIME",
    help="Ask what still runs there in so long (2h) to end.",
)
@click.option("--now", is_flag=True, help="End what runs there at once.")
@click.option(
    "--after-checkpoint",
    is_flag=True,
    help="Ask each job with a `checkpoint_dir` to end once it has written a checkpoint.",
)
@click.option("-y", "--yes", is_flag=True, help="With --now: do not ask.")
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
    """Take nodes out of service: they get no job until `muster node resume`.

    What runs there goes on to its end, unless --deadline, --now or --after-checkpoint say otherwise
    (the last with --deadline as its bound); a job that has to
    leave is tried again elsewhere, and it costs none of its retries. Said again, the new reason and
    deadline take the place of those before. A node stays drained through restarts and reboots.
    """
    if now and after_checkpoint:
        raise click.UsageError("--now and --after-checkpoint cannot go together: give one of them")
    if now and deadline_s is not None:
        raise click.UsageError("--now and --deadline cannot go together: give one of them")
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for whoever finds the node drained")
    client = connect()
    names = list(dict.fromkeys(nodes))
    if now and not yes and sys.stdin.isatty() and not _sure(client, names):
        note("nothing was drained")
        return EXIT_CLIENT

    def one(name: str) -> NodeView:
        answer = client.drain(
            name, reason, deadline_s=deadline_s, now=now, after_checkpoint=after_checkpoint
        )
        note(_said(answer, "was so already"))
        return answer.node

    return for_each(names, one, NodeList, as_json=as_json)


@click.command("resume", short_help="Take nodes back into service.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@click.option("--no-check", is_flag=True, help="Whatever may still be wrong with them.")
@json_option
@connection_options
def resume(*, nodes: tuple[str, ...], no_check: bool, as_json: bool) -> int:
    """Take nodes back into service, each once it is checked; what is found is told, and then the
    node stays as it is. The failures for which one was quarantined are forgotten.
    """
    client = connect()

    def one(name: str) -> NodeView:
        answer = client.resume(name, check=not no_check)
        note(_said(answer, "was in service"))
        return answer.node

    return for_each(list(dict.fromkeys(nodes)), one, NodeList, as_json=as_json)


@click.command("remove", short_help="Forget nodes that are gone.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=NODE)
@json_option
@connection_options
def remove(*, nodes: tuple[str, ...], as_json: bool) -> int:
    """Forget nodes that are gone: `muster nodes` and `muster explain` name them no more.

    A node that is connected, or may still run a job, is refused. One of that name may come again,
    and is in service then, whatever was said of the one before. With --json, the nodes as they
    were.
    """
    client = connect()

    def one(name: str) -> NodeView:
        answer = client.remove(name)
        note(f"{safe(name)} removed")
        return answer.node

    return for_each(list(dict.fromkeys(nodes)), one, NodeList, as_json=as_json)


def _said(answer: NodeAnswer, unchanged: str) -> str:
    view = answer.node
    before = "" if answer.changed else f" ({unchanged})"
    return f"{safe(view.name)} {view.admin}{before}: {safe(view.state.text)}"


def _sure(client: Client, names: list[str]) -> bool:
    """Ask, with what runs there; on stderr, as stdout is for programs."""
    for name in names:
        note(f"{safe(name)}: {safe(client.node(name).state.text)}")
    return click.confirm("end what runs there now?", default=False, err=True)

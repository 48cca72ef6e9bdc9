"""`muster show`: everything about one job."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import Any, Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.output.environment_view import print_environment
from muster.cli.output.fabric_view import print_fabric
from muster.cli.output.format import coloured, length, moment, print_line, safe, span, unconfirmed
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.cli.output.text_width import paragraph, terminal_width, use_colour
from muster.http.views import AttemptView, JobView, TaskView
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.outcome import Cause, CauseCode, ExitStatus
from muster.protocol.refusal_codes import headline
from muster.protocol.states import ENDED_STATES, JobState
from muster.protocol.text import EPILOG, PROLOG

_TASKS: Final = (
    Column("NODE", name=True),
    Column("RANK", right=True, drop=1),
    Column("ROLE", drop=2),
    Column("STATE"),
    Column("RANKS", elastic=True, wraps=True),
    Column("EXIT"),
    Column("REFUSED OR LEFT", elastic=True, wraps=True),
)
# A job in one of these states has no running ranks; it may have had some in an earlier attempt.
_BETWEEN: Final = (JobState.QUEUED, JobState.HELD, JobState.PREPARING, JobState.RETRYING)
_RANKS_NAMED: Final = 6
_NODES_NAMED: Final = 3
_TAIL_LINES: Final = 20
_RUN_CHARS: Final = 200
# At this width or more, a timeline shows dates, too. Shorter sentences may be repeated.
_WIDE: Final = 70
_SHORT: Final = 40
_AS_ABOVE: Final = "as above"
_WORDS_CHARS: Final = 60
# A part of a start that takes less is not shown.
_SHOWN_S: Final = 0.005


@click.command("show")
@click.argument("job", metavar="JOB", type=JOB)
@click.option(
    "--fabric", "fabric", is_flag=True, help="Show its fabric plan: HCAs, settings, and reasons."
)
@click.option(
    "--env",
    "env",
    is_flag=True,
    help="Show the variables of the last attempt, and the origin of each value.",
)
@click.option("--node", metavar="NODE", help="With --env: this node, not the first one.")
@json_option
@connection_options
def command(*, job: str, fabric: bool, env: bool, node: str | None, as_json: bool) -> None:
    """Show one job: its state and the reason, its attempts and nodes, and its timeline.

    EXIT of a node is the exit code of its first rank that failed. If no rank reports one, it is the
    code of the process that started the ranks, and is marked as such.
    """
    if env and fabric:
        raise click.UsageError("--env and --fabric exclude each other: give one of them")
    if node is not None and not env:
        raise click.UsageError("--node needs --env")
    client = connect()
    if env:
        shown = client.environment(find_job(client, job), node)
        if as_json:
            print_json(shown)
        else:
            print_environment(shown, node)
        return
    if fabric:
        found = client.fabric(find_job(client, job))
        if as_json:
            print_json(found)
        else:
            print_fabric(found)
        return
    view = client.job(find_job(client, job))
    if as_json:
        print_json(view)
        return
    _print_head(view, client.server_time)
    printed = {view.reason.text}
    for attempt in view.attempts:
        _print_attempt(attempt, str(view.spec.get("launcher", "")), printed)
        if attempt is view.attempts[-1] and attempt.cause is not None:
            _print_tail(attempt.cause)
    for webhook in view.pending_webhooks:
        why = f": {webhook.problem}" if webhook.problem else ""
        print_line(f"webhook {webhook.to} is pending ({webhook.event}){why}")
    _print_timeline(view, printed)


def _print_head(view: JobView, now: datetime | None) -> None:
    code = f", exit code {view.exit_code}" if view.exit_code is not None else ""
    state = view.state.value + code
    state = coloured(view.state, state) if use_colour() else state
    print(f"job {view.id}  {safe(view.name)}  {state}")
    if view.reason.text:
        print_line(view.reason.text)
    nodes = str(view.spec.get("nodes", view.nodes))
    gpus = f", {view.gpus} GPU{'' if view.gpus == 1 else 's'}" if view.gpus else ""
    print_line(
        f"user {view.user}, pool {view.pool}, priority {view.priority}, "
        f"{nodes} node{'' if nodes == '1' else 's'}{gpus}"
    )
    if view.rerun_of is not None:
        print_line(f"another run of job {view.rerun_of}")
    if view.held_at is not None:
        print_line(f"held since {moment(view.held_at)} by {view.held_by}: muster release {view.id}")
    for label, text in _what(view.spec):
        print_line(text, f"{label:<10}")
    print_line(moment(view.submitted_at) + _waited(view, now), "submitted ")
    if view.started_at is not None:
        print_line(moment(view.started_at) + _ran(view, now), "started   ")
    if view.ended_at is not None:
        print_line(moment(view.run_ended_at or view.ended_at) + _reported(view), "ended     ")
    for text in _countdowns(view, now):
        print_line(text)


def _what(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the job's command and folder from its job file; a long command is cut."""
    run = spec.get("run")
    text = shlex.join(map(str, run)) if isinstance(run, list) else " ".join(str(run).split())
    if not run:
        return []
    if len(text) > _RUN_CHARS:
        text = f"{text[:_RUN_CHARS]}…"
    lines = [("runs", f"{spec.get('launcher', '')}: {text}")]
    match spec.get("workdir"):
        case {"bundle": bundle}:
            lines.append(("in", f"a copy of the code that was sent, {bundle[:12]}"))
        case {"git": url, "commit": commit}:
            lines.append(("in", f"{url} at {commit}"))
        case str() as folder:
            lines.append(("in", folder))
        case _:
            pass
    return lines


def _countdowns(view: JobView, now: datetime | None) -> list[str]:
    if now is None:
        return []
    lines = []
    if view.starts_by is not None:
        start = f"by {moment(view.starts_by)} (in {span(view.starts_by - now)})"
        lines.append(f"promised start: {start}")
    if view.limit_at is not None:
        lines.append(f"time limit: ends in {span(view.limit_at - now)}")
    if view.limit_pending:
        lines.append(f"time limit: {unconfirmed(view.limit_pending)}")
    if view.kill_at is not None:
        left = (view.kill_at - now).total_seconds()
        lines.append(
            f"stopping: {span(left)} of the grace period left"
            if left > 0
            else "stopping: the grace period is over, remaining processes are killed"
        )
    return lines


def _ran(view: JobView, now: datetime | None) -> str:
    assert view.started_at is not None
    if view.state in _BETWEEN:
        return ", the first time; does not run now"
    end = view.run_ended_at if view.run_ended_at is not None else now
    runs = "ran" if view.state in ENDED_STATES else "runs for"
    return "" if end is None else f", {runs} {length(end - view.started_at)}"


def _reported(view: JobView) -> str:
    ended, unseen = view.ended_at, view.ended_unseen_at
    if ended is None or unseen is None:
        return ""
    return f", reported {length(ended - unseen)} later, when the coordinator was reachable again"


def _waited(view: JobView, now: datetime | None) -> str:
    if view.started_at is not None:
        return f", waited {length(view.started_at - view.submitted_at)}"
    if view.ended_at is None and now is not None:
        return f", waits for {span(now - view.submitted_at)}"
    return ""


def _print_attempt(attempt: AttemptView, launcher: str, printed: set[str]) -> None:
    """Print one attempt. `printed` holds the sentences that were already printed."""
    master = f", master {safe(attempt.master)}" if attempt.master else ""
    print(f"\nattempt {attempt.number}  {safe(attempt.state)}{master}")
    if attempt.network:
        print_line(f"network {attempt.network}")
    if attempt.fabric:
        print_line(f"fabric {attempt.fabric}")
    if attempt.proof is not None:
        print_line(attempt.proof.text, "traffic: ")
    if attempt.hang and not any(attempt.hang in sentence for sentence in printed):
        print_line(attempt.hang)
    cause = attempt.cause
    if cause is not None and cause.text not in printed:
        print_line(cause.text, "first cause: ")  # it names the rank and the node
        printed.add(cause.text)
    if attempt.tasks:
        # After a time limit or a cancel, all nodes were stopped, whatever the launcher's exit code.
        ended = cause is not None and cause.node is None and cause.code is not CauseCode.COMPLETED
        rows = [_task_row(task, launcher, printed, ended=ended) for task in attempt.tasks]
        columns = _TASKS if any(row[-1] for row in rows) else _TASKS[:-1]
        print_table(columns, [row[: len(columns)] for row in rows], indent="  ")
    _print_starts(attempt.tasks)
    for task in attempt.tasks:
        for warning in task.warnings:
            of_site = warning.startswith((PROLOG, EPILOG))
            print_line(f"{task.node}: {warning}", "" if of_site else "warning: ")


def _print_starts(tasks: tuple[TaskView, ...]) -> None:
    """Print how the ranks were started: one line for the nodes that did it alike, with the slowest
    node's time of each part.
    """
    alike: dict[str, list[TaskView]] = {}
    for task in tasks:
        if task.start is not None:
            alike.setdefault(_how_started(task.start), []).append(task)
    for how, found in alike.items():
        starts = [task.start for task in found if task.start is not None]
        parts = {
            "import of torch": max(start.import_s for start in starts),
            "preload": max(start.preload_s for start in starts),
            "check": max(start.check_s for start in starts),
            "fork": max(start.fork_s for start in starts),
        }
        took = ", ".join(
            f"{name} {value:.2f} s" for name, value in parts.items() if value >= _SHOWN_S
        )
        names = ", ".join(task.node for task in found[:_NODES_NAMED])
        more = len(found) - _NODES_NAMED
        nodes = f"{names} and {more} more" if more > 0 else names
        print_line(f"{nodes}: {how}" + (f" ({took})" if took else ""), "ranks: ")


def _how_started(start: RanksStart) -> str:
    if start.method == "fork":
        return "forked"
    if start.why:
        return f"by exec instead of fork, because {start.why}"
    return "by exec, as `start_method: exec` asks"


def _print_tail(cause: Cause) -> None:
    """Print the last output of the process that failed first. Escaped, because it must not move the
    cursor."""
    lines = cause.tail.splitlines()
    if not lines:
        return
    whose = "" if cause.rank is None else f" of rank {cause.rank}"
    where = f" on {safe(cause.node)}" if cause.node else ""
    print(f"  last line{'s' if len(lines) > 1 else ''}{whose}{where}:")
    for line in lines[-_TAIL_LINES:]:
        print(f"    {safe(line.expandtabs())}")


def _task_row(task: TaskView, launcher: str, printed: set[str], *, ended: bool) -> list[str]:
    return [
        task.node,
        str(task.node_rank),
        task.role,
        task.state.value,
        _ranks(task),
        _exit(task, launcher, ended=ended),
        _why_not(task, printed),
    ]


def _exit(task: TaskView, launcher: str, *, ended: bool) -> str:
    """Return the exit code of the node's first rank that failed by itself.

    torchrun's own code is 1 whatever its ranks returned, so it is shown only if there is none of a
    rank, and marked as such. `ended`: Muster ended the whole gang.
    """
    if task.exit is None:
        return "-"
    failed = [r.exit for r in task.ranks if r.exit and not r.exit.ok and not r.stopped]
    if failed:
        return exit_text(failed[0])
    if task.exit.ok or launcher in ("none", "processes"):
        return exit_text(task.exit)
    stopped = ended or any(rank.stopped for rank in task.ranks)
    return "stopped" if stopped else f"{exit_text(task.exit)} (torchrun)"


def _why_not(task: TaskView, printed: set[str]) -> str:
    """Return why the task was refused or left. A repeated reason is replaced by "as above"."""
    text = headline(task.refusal.text) if task.refusal is not None else task.left or ""
    if text in printed and len(text) > len(_AS_ABOVE):
        return _AS_ABOVE
    printed.add(text)
    return text


def _ranks(task: TaskView) -> str:
    """Return the ranks that ran on the node, and the first few that failed."""
    if not task.ranks:
        return "-"
    numbers = [rank.rank for rank in task.ranks]
    text = f"{min(numbers)}-{max(numbers)}" if len(numbers) > 1 else str(numbers[0])
    failed = [
        rank
        for rank in task.ranks
        if rank.exit is not None and not rank.exit.ok and not rank.stopped
    ]
    printed = [f"{rank.rank}: {_ended(rank.exit)}" for rank in failed[:_RANKS_NAMED] if rank.exit]
    if len(failed) > _RANKS_NAMED:
        printed.append("...")
    stopped = sum(rank.stopped for rank in task.ranks)
    if stopped:
        printed.append(
            f"{stopped} stopped by Muster" if stopped < len(numbers) else "stopped by Muster"
        )
    return f"{text} ({', '.join(printed)})" if printed else text


def _ended(status: ExitStatus) -> str:
    return f"exit {status.code}" if status.signal is None else exit_text(status)


def exit_text(status: ExitStatus) -> str:
    """Return an exit status as `0`, `17`, or `signal 9`."""
    if status.signal is not None:
        return f"signal {status.signal}"
    return "-" if status.code is None else str(status.code)


def _shorter(lead: str, rest: str, sentence: str) -> str:
    """Replace a sentence that was already printed. Without a lead, keep its first words, so that
    the line still has a subject."""
    if lead:
        return f"{lead}{_AS_ABOVE}{rest}"
    first = re.split("[:;] ", sentence, maxsplit=1)[0]
    if len(first) > _WORDS_CHARS:
        first = f"{first[: _WORDS_CHARS - 1].rstrip()}…"
    return f"{first}: {_AS_ABOVE}{rest}"


def _print_timeline(view: JobView, printed: set[str]) -> None:
    """Print the timeline. Sentences that were already printed are shortened."""
    if not view.timeline:
        return
    print("\ntimeline (+ time since the previous line)")
    width = terminal_width()
    wide = width is None or width >= _WIDE
    before = view.timeline[0].at
    for step in view.timeline:
        text = safe(step.text)
        for sentence in (safe(each) for each in printed if len(each) > _SHORT):
            lead, found, rest = text.partition(sentence)
            if found:
                text = _shorter(lead, rest, found)
        at = moment(step.at) if wide else moment(step.at)[11:-1]
        print(paragraph(text, first=f"  {at}  {'+' + length(step.at - before):>7}  "))
        before = step.at

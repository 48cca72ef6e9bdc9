"""`muster show`: one job, whole."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any, Final

import click

from muster.cli.connection import connect, connection_options
from muster.cli.json_output import print_json
from muster.cli.reference import find_job
from muster.cli.table import Column, print_table
from muster.cli.text import length, moment, safe, span
from muster.protocol.http import AttemptView, JobView, TaskView
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import ENDED_STATES

_TASKS: Final = (
    Column("NODE"),
    Column("RANK", right=True),
    Column("ROLE"),
    Column("STATE"),
    Column("RANKS"),
    Column("EXIT"),
    Column("REFUSED OR LEFT", elastic=True),
)
_RANKS_NAMED: Final = 6
_TAIL_LINES: Final = 20
_RUN_CHARS: Final = 200


@click.command("show")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="As the coordinator's API gives it.")
@connection_options
def command(*, job: str, as_json: bool) -> None:
    """Show one job: its state and the reason, its attempts and nodes, and what happened when."""
    client = connect()
    view = client.job(find_job(client, job))
    if as_json:
        print_json(view)
        return
    _print_head(view, client.server_time)
    for attempt in view.attempts:
        _print_attempt(attempt)
        if attempt is view.attempts[-1] and attempt.cause is not None:
            _print_tail(attempt.cause)
    _print_timeline(view)


def _print_head(view: JobView, now: datetime | None) -> None:
    code = f", exit code {view.exit_code}" if view.exit_code is not None else ""
    print(f"job {view.id}  {safe(view.name)}  {view.state.value}{code}")
    if view.reason.text:
        print(f"  {safe(view.reason.text)}")
    print(
        f"  user {safe(view.user)}, pool {safe(view.pool)}, priority {view.priority}, "
        f"{view.spec.get('nodes', view.nodes)} node{'s' if view.nodes != 1 else ''}"
    )
    for line in _what(view.spec):
        print(f"  {line}")
    print(f"  submitted {moment(view.submitted_at)}{_waited(view, now)}")
    if view.started_at is not None:
        end = view.ended_at if view.ended_at is not None else now
        ran = "" if end is None else f", {_ran(view)} {length(end - view.started_at)}"
        print(f"  started   {moment(view.started_at)}{ran}")
    if view.ended_at is not None:
        print(f"  ended     {moment(view.ended_at)}")
    for line in _countdowns(view, now):
        print(f"  {line}")


def _what(spec: dict[str, Any]) -> list[str]:
    """What it runs, as in its job file; a long command is cut."""
    run = spec.get("run")
    text = shlex.join(map(str, run)) if isinstance(run, list) else " ".join(str(run).split())
    if not run:
        return []
    if len(text) > _RUN_CHARS:
        text = f"{text[:_RUN_CHARS]}…"
    lines = [f"runs      {safe(str(spec.get('launcher', '')))}: {safe(text)}"]
    if spec.get("workdir"):
        lines.append(f"in        {safe(str(spec['workdir']))}")
    return lines


def _countdowns(view: JobView, now: datetime | None) -> list[str]:
    if now is None:
        return []
    lines = []
    if view.limit_at is not None:
        lines.append(f"time limit: ends in {span(view.limit_at - now)}")
    if view.kill_at is not None:
        left = (view.kill_at - now).total_seconds()
        lines.append(
            f"stopping: {span(left)} of the grace left"
            if left > 0
            else "stopping: the grace is over, what is left is killed"
        )
    return lines


def _ran(view: JobView) -> str:
    return "ran" if view.state in ENDED_STATES else "runs for"


def _waited(view: JobView, now: datetime | None) -> str:
    if view.started_at is not None:
        return f", waited {length(view.started_at - view.submitted_at)}"
    if view.ended_at is None and now is not None:
        return f", waits for {span(now - view.submitted_at)}"
    return ""


def _print_attempt(attempt: AttemptView) -> None:
    master = f", master {safe(attempt.master)}" if attempt.master else ""
    print(f"\nattempt {attempt.number}  {safe(attempt.state)}{master}")
    if attempt.network:
        print(f"  network {safe(attempt.network)}")
    if attempt.cause is not None:
        print(f"  first cause: {safe(attempt.cause.text)}")  # it names the rank and the node
    if attempt.tasks:
        print_table(_TASKS, [_task_row(task) for task in attempt.tasks])
    for task in attempt.tasks:
        for warning in task.warnings:
            print(f"  warning: {safe(task.node)}: {safe(warning)}")


def _print_tail(cause: Cause) -> None:
    """The last words of whatever failed first; they come from a program, so nothing in them may
    move the cursor."""
    lines = cause.tail.splitlines()
    if not lines:
        return
    whose = "" if cause.rank is None else f" of rank {cause.rank}"
    where = f" on {safe(cause.node)}" if cause.node else ""
    print(f"  last line{'s' if len(lines) > 1 else ''}{whose}{where}:")
    for line in lines[-_TAIL_LINES:]:
        print(f"    {safe(line.expandtabs())}")


def _task_row(task: TaskView) -> list[str]:
    return [
        task.node,
        str(task.node_rank),
        task.role,
        task.state.value,
        _ranks(task),
        "-" if task.exit is None else exit_text(task.exit),
        _why_not(task),
    ]


def _why_not(task: TaskView) -> str:
    return task.refusal.text if task.refusal is not None else task.left or ""


def _ranks(task: TaskView) -> str:
    """Which ranks ran there; those that failed by name, as many as there is room for."""
    if not task.ranks:
        return "-"
    numbers = [rank.rank for rank in task.ranks]
    text = f"{min(numbers)}-{max(numbers)}" if len(numbers) > 1 else str(numbers[0])
    failed = [
        rank
        for rank in task.ranks
        if rank.exit is not None and not rank.exit.ok and not rank.stopped
    ]
    told = [f"{rank.rank}: {_ended(rank.exit)}" for rank in failed[:_RANKS_NAMED] if rank.exit]
    if len(failed) > _RANKS_NAMED:
        told.append("...")
    stopped = sum(rank.stopped for rank in task.ranks)
    if stopped:
        told.append(f"{stopped} stopped by us" if stopped < len(numbers) else "stopped by us")
    return f"{text} ({', '.join(told)})" if told else text


def _ended(status: ExitStatus) -> str:
    return f"exit {status.code}" if status.signal is None else exit_text(status)


def exit_text(status: ExitStatus) -> str:
    """`0`, `17`, or `signal 9`."""
    if status.signal is not None:
        return f"signal {status.signal}"
    return "-" if status.code is None else str(status.code)


def _print_timeline(view: JobView) -> None:
    if not view.timeline:
        return
    print("\ntimeline")
    before = view.timeline[0].at
    for step in view.timeline:
        print(f"  {moment(step.at)}  {'+' + length(step.at - before):>7}  {safe(step.text)}")
        before = step.at

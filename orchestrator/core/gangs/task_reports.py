"""Translation of an agent's cumulative task report into the facts that are new in it."""

from __future__ import annotations

from typing import Final

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.protocol.text import EPILOG
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.members import TermsStored
from orchestrator.core.gangs.terms import warn_after_s
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.model.task import OVER, reached

_LINE_MAX: Final = 300


def new_facts_from_report(task: Task, report: TaskReport, now: Instant) -> list[f.Fact]:
    """The facts in `report` that `task` does not have yet, in the order in which they happened.

    A report may skip states, if earlier reports were lost with a connection. It never moves a task
    backwards: an older report yields no facts.
    """
    if task.state in OVER:
        return []
    key = (task.job, task.attempt, task.rank)
    found: list[f.Fact] = []
    standing_by = not reached(task.state, TaskState.STARTED) and report.exit is None
    if report.refusal is not None and task.refusal is None and standing_by:
        found.append(f.TaskRefused(*key, report.refusal))
    if report.prepared is not None and not reached(task.state, TaskState.PREPARED):
        found.append(f.TaskPrepared(*key, report.prepared))
    if report.terms > task.terms:
        found.append(TermsStored(*key, report.terms, now.mono))
    prepared = task.prepared is not None or report.prepared is not None
    if prepared:
        found += _run(task, report)
    if report.state is TaskState.CLEANED:
        epilog = next((it for it in report.warnings if it.startswith(EPILOG)), "")
        found.append(f.TaskCleaned(*key, report.no_output, epilog[:_LINE_MAX]))
    return found


def _run(task: Task, report: TaskReport) -> list[f.Fact]:
    key = (task.job, task.attempt, task.rank)
    found: list[f.Fact] = []
    began = reached(report.state, TaskState.STARTED) and (
        report.exit is not None or bool(report.ranks)
    )
    began = began or report.state is TaskState.STARTED
    arranged = report.state is TaskState.ARRANGED or began
    if arranged and not reached(task.state, TaskState.ARRANGED):
        warnings = tuple(it for it in report.warnings if not it.startswith(EPILOG))
        found.append(f.TaskArranged(*key, warnings))
    if report.listening and not task.listening:
        found.append(f.TaskListening(*key))
    if began and not reached(task.state, TaskState.STARTED):
        found.append(f.TaskStarted(*key))
    start, known = report.start, task.start
    if start is not None and (known is None or (known.method, start.method) == ("fork", "exec")):
        found.append(f.RanksStarted(*key, start))
    ended = report.exit is not None or (began and report.state is TaskState.CLEANED)
    if ended and task.exit is None:
        # If its shim was killed, only the end of a task is known, without an exit status.
        exit_status = report.exit if report.exit is not None else ExitStatus()
        ranks = report.ranks
        traffic = report.observed.traffic or task.traffic
        stopped_by, ran_s = report.stopped_by, report.running_s
        found.append(f.TaskExited(*key, exit_status, ranks, stopped_by, traffic, ran_s))
    return found


def time_limit_warnings(job: Job, attempt: Attempt, task: Task, report: TaskReport) -> list[f.Fact]:
    """Return the warning of the time limit, once for all nodes, and again for a later limit.

    A node cannot make up more of them: after the first, only the current limit counts.
    """
    warned_s, known, due_s = report.warned_s, attempt.warned_s, warn_after_s(job, task)
    if warned_s is None or due_s is None:
        return []
    if known is not None and (warned_s <= known or warned_s != due_s):
        return []
    return [f.AttemptWarned(attempt.job, attempt.number, warned_s)]

"""The cause of a rollback before the start, from the refusals of a gang's nodes."""

from __future__ import annotations

from typing import Final

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode, headline
from muster.protocol.states import TaskState
from orchestrator.core.failures.causes import TAIL_CHARS_MAX, shortened
from orchestrator.core.failures.git_fetch import advice_on, last_line
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.blame import OF_NOBODY
from orchestrator.core.model.state import Attempt, Task
from orchestrator.core.model.task import reached

BY_US: Final = frozenset({RefusalCode.FABRIC_DIFFERS, RefusalCode.PREFLIGHT})
"""Refusals that the coordinator records together with their consequences."""


def refusal_cause(attempt: Attempt) -> Cause:
    """The refusal that explains the rollback, as a cause.

    The first in rank order that is its node's own fault, otherwise the first. An unreachable
    launcher comes last: other refusals show which end is at fault.
    """
    refused = [t for t in attempt.tasks if t.refusal is not None and not t.joined]
    first = min(refused, key=_clearer)
    if first.refusal is not None and first.refusal.code == RefusalCode.UNREACHABLE:
        return _unreached(attempt, first)
    return refusal_of(attempt, first)


def _clearer(task: Task) -> tuple[bool, bool]:
    if task.refusal is None:
        raise AssertionError(f"task {task.id} has not refused")
    return task.refusal.code == RefusalCode.UNREACHABLE, not task.refusal.node_fault


def _unreached(attempt: Attempt, worker: Task) -> Cause:
    """The launcher is at fault if no worker reached it."""
    launcher, *workers = attempt.tasks
    if any(t.refusal is None and reached(t.state, TaskState.ARRANGED) for t in workers):
        return refusal_of(attempt, worker)
    said = "" if worker.refusal is None else worker.refusal.text
    return Cause(
        CauseCode.ARRANGE_FAILED,
        Outcome.INFRA,
        shortened(f"none of the gang reaches its launcher; {worker.node} says: {said}"),
        node=launcher.node,
        refusal=RefusalCode.UNREACHABLE,
        node_fault=True,
    )


def refusal_of(attempt: Attempt, task: Task) -> Cause:
    """The cause that one task's refusal gives its gang."""
    assert task.refusal is not None
    text, tail = headline(task.refusal.text), task.refusal.text.partition("\n")[2]
    fetching = task.refusal.code == RefusalCode.FETCH_FAILED
    if fetching:
        line = last_line(tail)
        text = "; ".join(filter(None, [f"{text}: {line}" if line else text, advice_on(line)]))
    if task.refusal.code != RefusalCode.FABRIC_DIFFERS:
        text = f"{task.node} refused: {text}"
    preparing = attempt.phase is AttemptPhase.PREPARING
    # The node had been prepared before, so the fault is its own or that of its network.
    unready = task.prepared is not None and task.refusal.code not in OF_NOBODY
    return Cause(
        CauseCode.PREPARE_REFUSED if preparing else CauseCode.ARRANGE_FAILED,
        # Because another attempt would be refused for the same reason.
        Outcome.NEVER_STARTED if task.refusal.code == RefusalCode.TOO_LARGE else Outcome.INFRA,
        shortened(text),
        node=task.node,
        refusal=task.refusal.code,
        node_fault=task.refusal.node_fault or unready,
        kind=FailureKind.CODE_NOT_FETCHED if fetching else "",
        tail=tail[-TAIL_CHARS_MAX:],
    )

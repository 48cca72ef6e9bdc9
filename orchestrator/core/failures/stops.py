"""Stop of a gang: the only module that requests it, and the choice to go on without one task.

Under c10d, if a torchrun is gone or waits to join, all torchruns hold a new rendezvous and restart
their ranks with the new world size. The launcher's node holds the store of the rendezvous, so an
elastic gang ends with that node.
"""

from __future__ import annotations

from muster.protocol.link.control_channel import TaskReport
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts.jobs import StopRequested, TaskLeft, TaskLost
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.model.task import reached


def stop(attempt: Attempt, cause: Cause) -> StopRequested:
    """Stop the attempt. If it gets two causes in one turn, the first one counts."""
    return StopRequested(attempt.job, attempt.number, cause)


def lost(task: Task, reason: str, proof: TaskProof) -> TaskLost:
    """The end of a task of which no record will come."""
    return TaskLost(task.job, task.attempt, task.rank, reason, proof)


def stop_or_leave(
    job: Job,
    attempt: Attempt,
    task: Task,
    cause: Cause,
    *,
    killed: bool = False,
    force: bool = False,
) -> list[StopRequested | TaskLeft]:
    """Handle the end of one task before its gang's: the task leaves, or the whole gang stops.

    Returns [] if the task has left, or its gang is stopping. `killed` as in `survives_without`,
    `force` as in TaskLeft.
    """
    if attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED) or not task.present:
        return []
    if survives_without(job, attempt, task, cause, killed=killed):
        return [TaskLeft(task.job, task.attempt, task.rank, cause.text, force)]
    return [stop(attempt, cause)]


def affects_gang(job: Job, report: TaskReport, cause: Cause) -> bool:
    """True if a cause concerns the whole gang.

    In an elastic gang, torchrun restarts failed ranks.
    """
    return (
        not job.spec.elastic or cause.code is not CauseCode.RANK_FAILED or report.exit is not None
    )


def survives_without(
    job: Job, attempt: Attempt, task: Task, cause: Cause, *, killed: bool = False
) -> bool:
    """True if the gang can continue after this task ended for this cause.

    A lost node or a `killed` torchrun leaves. A torchrun that gives up has closed the rendezvous
    for all.
    """
    if not job.spec.elastic or attempt.phase is not AttemptPhase.RUNNING or task.rank == 0:
        return False
    if attempt.started_at is None:
        return False
    if task.joined and (cause.rank is None or not reached(task.state, TaskState.STARTED)):
        # The task never belonged to the gang, or joined when the gang was about to end.
        return True
    rest = [t for t in attempt.present if t is not task and reached(t.state, TaskState.STARTED)]
    departs = killed or cause.outcome is Outcome.INFRA
    return departs and len(rest) >= job.spec.nodes


def was_killed(report: TaskReport) -> bool:
    return report.exit is not None and report.exit.signal is not None

"""Terms of a task: what its node has to know to run it while the coordinator is away."""

from __future__ import annotations

import hmac

from muster.protocol.ids import NodeName
from muster.protocol.link.terms import Member, Terms
from muster.protocol.states import TaskState
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import may_vouch
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.scheduling.rendezvous import endpoint


def vouch_key(state: State, job: Job, attempt: Attempt) -> str:
    """The key with which the agents of a gang vouch for each other; "" if they do not.

    They do only if all of them answer: a member that cannot be asked never vouches.
    """
    answer = all(it.prepared is not None and it.prepared.peer_port for it in attempt.tasks)
    if not (state.secret and answer and may_vouch(job, attempt)):
        return ""
    name = f"{state.cluster}/{job.id}/{attempt.number}"
    return hmac.digest(state.secret.encode(), name.encode(), "sha256").hex()


def members_of(attempt: Attempt) -> tuple[Member, ...]:
    """The members of a gang whose agents vouch for each other; () if they do not."""
    if not attempt.vouch_key:
        return ()
    return tuple(
        Member(task.id, endpoint(attempt, task).address, task.prepared.peer_port)
        for task in attempt.tasks
        if task.prepared is not None
    )


def terms_of(job: Job, attempt: Attempt, task: Task, members: tuple[Member, ...]) -> Terms:
    """The current terms of a task.

    The limit of a task that joined is late by the time that its node needed for it. That ends no
    gang too late, because the first node of an elastic gang stays to its end.
    """
    limit_s, warn = job.spec.time_limit_s, job.spec.stop.warn
    if limit_s is None:
        return Terms(attempt.terms, members=members)
    rest_s = max(0.0, limit_s - task.joined_after_s)
    if warn is None:
        return Terms(attempt.terms, rest_s, members=members)
    warn_s = max(0.0, rest_s - warn.before_s)
    return Terms(attempt.terms, rest_s, warn_s, warn.signal, members)


def nodes_without_terms(attempt: Attempt) -> tuple[NodeName, ...]:
    """The nodes of a running attempt that have not confirmed its changed terms yet."""
    if attempt.phase is not AttemptPhase.RUNNING or attempt.terms == 1:
        return ()
    return tuple(
        task.node
        for task in attempt.present
        if task.state is TaskState.STARTED and task.terms < attempt.terms
    )

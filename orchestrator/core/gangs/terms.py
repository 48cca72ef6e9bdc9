"""Terms of a task: what its node has to know to run it while the coordinator is away."""

from __future__ import annotations

import hmac

from msgspec.structs import replace

from muster.protocol.ids import NodeName
from muster.protocol.link.terms import Member, Terms
from muster.protocol.states import TaskState
from orchestrator.core.gangs.host_names import addresses
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import may_vouch
from orchestrator.core.model.members import require_prepared
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
    """The members of a gang whose agents vouch for each other; () if they do not.

    Terms of the same number name the same members to all nodes, except that a node which joins is
    a member by its own plan before the others know it: it has to have the plan when they ask.
    """
    if not attempt.vouch_key:
        return ()
    return tuple(_member(attempt, it) for it in attempt.present if it.member_from is not None)


def _member(attempt: Attempt, task: Task) -> Member:
    address = endpoint(attempt, task).address
    return Member(task.id, address, require_prepared(task).peer_port)


def terms_of(job: Job, attempt: Attempt, task: Task, members: tuple[Member, ...]) -> Terms:
    """The current terms of a task, with the members of its gang.

    The limit of a task that joined is late by the time that its node needed for it. That ends no
    gang too late, because the first node of an elastic gang stays to its end.
    """
    limit_s, warn = job.spec.time_limit_s, job.spec.stop.warn
    if attempt.vouch_key and task.member_from is None:
        members = (*members, _member(attempt, task))
    admits = addresses(attempt) if job.spec.elastic and task.rank == 0 else ()
    terms = Terms(attempt.terms, members=members, admits=admits)
    if limit_s is None:
        return terms
    rest_s = max(0.0, limit_s - task.joined_after_s)
    if warn is None:
        return replace(terms, limit_s=rest_s)
    warn_s = warn_after_s(job, task)
    return replace(terms, limit_s=rest_s, warn_s=warn_s, warn_signal=warn.signal)


def warn_after_s(job: Job, task: Task) -> float | None:
    """The time after the start at which a node warns its ranks of the current time limit; None if
    it does not.
    """
    limit_s, warn = job.spec.time_limit_s, job.spec.stop.warn
    if limit_s is None or warn is None:
        return None
    return max(0.0, max(0.0, limit_s - task.joined_after_s) - warn.before_s)


def is_admitted(attempt: Attempt, task: Task) -> bool:
    """True if the launcher's node has confirmed that it lets in the node of a task that joins.

    A task of an earlier release needs no admission: the launcher's node is open to all.
    """
    return task.admitted_from is None or attempt.tasks[0].terms >= task.admitted_from


def nodes_without_terms(attempt: Attempt) -> tuple[NodeName, ...]:
    """The nodes of a running attempt that have not confirmed its changed time limit yet."""
    if attempt.phase is not AttemptPhase.RUNNING or attempt.limit_terms == 1:
        return ()
    return tuple(
        task.node
        for task in attempt.present
        if task.state is TaskState.STARTED and task.terms < attempt.limit_terms
    )

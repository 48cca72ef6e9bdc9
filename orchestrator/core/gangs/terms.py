"""Terms of a task: what its node has to know to run it while the coordinator is away."""

from __future__ import annotations

import hmac

from muster.protocol.link.terms import Member, Terms
from orchestrator.core.model.leases import may_vouch
from orchestrator.core.model.state import Attempt, Job, State
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


def terms_of(attempt: Attempt) -> Terms | None:
    """The terms in the first plan of an attempt; None if there are none."""
    if not attempt.vouch_key:
        return None
    members = tuple(
        Member(task.id, endpoint(attempt, task).address, task.prepared.peer_port)
        for task in attempt.tasks
        if task.prepared is not None
    )
    return Terms(number=1, members=members)

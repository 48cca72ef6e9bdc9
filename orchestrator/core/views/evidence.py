"""The verdicts on a job's attempts, each with its evidence."""

from __future__ import annotations

from muster.http.job_evidence import AttemptEvidence, Evidence, HangEvidence
from muster.protocol.timestamp import maybe_timestamp, timestamp
from orchestrator.core.model.state import Attempt, Job
from orchestrator.core.monitoring.traffic import proof_view
from orchestrator.core.views.fabric import was_refused


def evidence_of(job: Job) -> Evidence:
    """Return the evidence of all attempts of the job."""
    return Evidence(job.id, tuple(_attempt(job, attempt) for attempt in job.attempts))


def _attempt(job: Job, attempt: Attempt) -> AttemptEvidence:
    watched = attempt.released_at is not None and not was_refused(attempt)
    return AttemptEvidence(
        number=attempt.number,
        nodes=tuple(task.node for task in attempt.tasks),
        started_at=maybe_timestamp(attempt.started_at),
        closed_at=maybe_timestamp(attempt.closed_at),
        cause=attempt.cause,
        reports=tuple(rank for task in attempt.tasks for rank in task.ranks),
        refusals={task.node: task.refusal.text for task in attempt.tasks if task.refusal},
        hangs=tuple(HangEvidence(timestamp(at), verdict) for at, verdict in attempt.hangs),
        activity=tuple(rank for task in attempt.tasks for rank in task.activity),
        proof=proof_view(job, attempt) if watched else None,
        happened=tuple((timestamp(at), text) for at, text in attempt.changes.entries()),
    )

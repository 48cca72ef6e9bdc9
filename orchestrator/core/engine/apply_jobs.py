"""Apply facts about jobs: their queues, their phases, and changes by users."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import assert_never

from msgspec import UNSET, json, structs

from muster.spec.model import JobSpec
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.queue import JobPassed, StartMoved, StartPromised
from orchestrator.core.model.errors import InvalidTransition
from orchestrator.core.model.job import JOB_TRANSITIONS, JobPhase
from orchestrator.core.model.state import Hold, Job, State
from orchestrator.core.webhooks.outbox import take_webhooks


def apply_job(state: State, fact: f.OfJob, at: float) -> None:
    match fact:
        case f.JobSubmitted(job_id, spec, user, key, digest, rerun_of):
            size = bytes_of(spec)
            job = Job(job_id, spec, user, at, rerun_of=rerun_of, key=key, spec_bytes=size)
            state.spec_bytes[user] = state.spec_bytes.get(user, 0) + size
            state.jobs[job_id] = job
            state.next_job = max(state.next_job, job_id + 1)
            if key:
                state.keys[user, key] = (job_id, digest)
            enqueue(state, job)
        case f.CancelRequested(job_id, user, reason, grace_s, force):
            state.jobs[job_id].cancel = (user, reason, grace_s, force)
        case f.RetryScheduled(job_id, budget, delay_s, avoid):
            job = state.jobs[job_id]
            job_to(job, JobPhase.BACKOFF)
            job.retry_after_s, job.avoid = delay_s, frozenset(avoid)
            match budget:
                case "user":
                    job.user_used += 1
                case "infra":
                    job.infra_used += 1
                case _:
                    pass
        case f.JobRequeued(job_id):
            job = state.jobs[job_id]
            job_to(job, JobPhase.QUEUED)
            enqueue(state, job)
        case f.JobEnded(job_id, cause):
            job = state.jobs[job_id]
            _leave_line(state, job)
            job_to(job, JobPhase.ENDED)
            job.cause, job.ended_at = cause, at
            _release_bytes(state, job)
        case f.JobHeld() | f.JobReleased() | f.JobChanged():
            _apply_change(state, state.jobs[fact.job], fact, at)
        case f.JobForgotten(job_id):
            job = state.jobs.pop(job_id)
            state.webhook_jobs.discard(job_id)
            if job.queued_webhooks:
                take_webhooks(state, job, len(job.queued_webhooks))
            if job.key:
                del state.keys[job.user, job.key]
            state.forgotten += 1
        case _:
            assert_never(fact)


def apply_promise(job: Job, fact: StartPromised | StartMoved | JobPassed, at: float) -> None:
    if isinstance(fact, JobPassed):
        job.passed_by += 1
    else:
        job.starts_by = fact.at
    job.notes.add(at, fact.describe())


def _apply_change(
    state: State, job: Job, fact: f.JobHeld | f.JobReleased | f.JobChanged, at: float
) -> None:
    match fact:
        case f.JobHeld(_, user, reason):
            _leave_line(state, job)
            job_to(job, JobPhase.HELD)
            state.held.add(job.id)
            job.hold = Hold(user, reason, at)
        case f.JobReleased():
            _leave_line(state, job)
            job_to(job, JobPhase.QUEUED)
            enqueue(state, job)
            job.released = True
        case f.JobChanged(_, _, priority, time_limit_s, name):
            waits = job.phase is JobPhase.QUEUED
            if waits:
                dequeue(state, job)
            if job.asked is None:
                job.asked = job.spec
            given = {"priority": priority, "time_limit_s": time_limit_s, "name": name}
            changes = {field: value for field, value in given.items() if value is not UNSET}
            job.spec = structs.replace(job.spec, **changes)
            if job.current is not None and time_limit_s is not UNSET:
                job.current.terms = job.next_terms(job.current)
                job.current.limit_terms = job.current.terms
            if waits:
                enqueue(state, job)
        case _:
            assert_never(fact)
    job.notes.add(at, fact.describe())


def bytes_of(spec: JobSpec) -> int:
    """Return the size of a specification in bytes, as JSON."""
    return len(json.encode(spec))


def _release_bytes(state: State, job: Job) -> None:
    left = state.spec_bytes.pop(job.user) - job.spec_bytes
    if left:
        state.spec_bytes[job.user] = left


def enqueue(state: State, job: Job) -> None:
    insort(state.queues.setdefault(job.spec.pool, []), (-job.spec.priority, job.id))
    state.waiting.add(job.spec, job.id)


def dequeue(state: State, job: Job) -> None:
    queue = state.queues[job.spec.pool]
    del queue[bisect_left(queue, (-job.spec.priority, job.id))]
    state.waiting.remove(job.spec, job.id)


def _leave_line(state: State, job: Job) -> None:
    """Remove the job from its queue or from the held jobs."""
    if job.phase is JobPhase.QUEUED:
        dequeue(state, job)
    state.held.discard(job.id)
    job.hold = None


def job_to(job: Job, phase: JobPhase) -> None:
    if phase not in JOB_TRANSITIONS[job.phase]:
        raise InvalidTransition(f"job {job.id}: {job.phase.value} to {phase.value}")
    job.phase = phase
    job.starts_by = None

"""The outbox of webhooks: each event is kept until every webhook has it, also over restarts."""

from __future__ import annotations

from typing import assert_never
from urllib.parse import urlsplit

from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.state import Job, QueuedWebhook, State

_WORDS = {
    nf.WebhookEvent.STARTED: "that attempt {} has started",
    nf.WebhookEvent.RETRYING: "that attempt {} failed and is retried",
    nf.WebhookEvent.ENDED: "of the end",
    nf.WebhookEvent.IDLE: "that attempt {} is idle",
    nf.WebhookEvent.HUNG: "that attempt {} hangs",
    nf.WebhookEvent.SLOW: "that attempt {} is slow",
}


def queue_webhooks(job: Job, event: nf.WebhookEvent) -> list[f.Fact]:
    """The fact that queues an event for the job's webhooks; empty if the job has none."""
    if not job.spec.notify:
        return []
    return [nf.WebhookQueued(job.id, job.notices_made + 1, event, job.last_attempt)]


def apply_notice(state: State, fact: nf.OfNotices, at: float) -> None:
    job = state.jobs[fact.job]
    match fact:
        case nf.WebhookQueued(_, number, event, attempt):
            job.notices_made = number
            for hook in range(len(job.spec.notify)):
                job.notices[number, hook] = QueuedWebhook(event.value, at, attempt)
            state.telling.add(job.id)
        case nf.WebhookSettled(_, number, hook, problem):
            notice = job.notices.pop((number, hook), None)
            if notice is not None and problem:
                told = f"webhook {host_of(job, hook)} was not notified {words(notice)}: {problem}"
                job.notes.add(at, told)
            if not job.notices:
                state.telling.discard(job.id)
        case nf.WebhookFailed(_, number, hook, problem):
            known = job.notices.get((number, hook))
            if known is not None:
                job.notices[number, hook] = known._replace(problem=problem)
        case _:
            assert_never(fact)


def on_attempted(state: State, received: s.WebhookAttempted) -> Decision:
    """Record the result of a delivery.

    A result without a queued event is ignored, for example one from an earlier process.
    """
    job = state.jobs.get(received.job)
    place = received.number, received.hook
    notice = None if job is None else job.notices.get(place)
    if notice is None:
        return Decision()
    if received.over:
        return Decision([nf.WebhookSettled(received.job, *place, received.problem)])
    if notice.problem == received.problem:
        return Decision()
    return Decision([nf.WebhookFailed(received.job, *place, received.problem)])


def host_of(job: Job, hook: int) -> str:
    """The host of a webhook only, because the rest of the URL is often a secret."""
    return urlsplit(job.spec.notify[hook]).netloc


def words(notice: QueuedWebhook) -> str:
    return _WORDS[nf.WebhookEvent(notice.event)].format(notice.attempt)

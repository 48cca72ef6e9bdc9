"""The outbox of webhooks: each event is kept until every webhook has it, also over restarts.

If too many notices wait, the ones that have waited longest are dropped: those of a webhook that
does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, assert_never
from urllib.parse import urlsplit

from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.state import Job, QueuedWebhook, State
from orchestrator.core.model.user_webhooks import UserWebhooks

OF_JOB_MAX: Final = 256
OF_USER_MAX: Final = 10_000
SPEC_BYTES_MAX: Final = 64 << 20
"""Specifications of a user's jobs with waiting notices. They stay in memory as long."""
_DROPPED_AT_ONCE: Final = 512

_WORDS = {
    nf.WebhookEvent.STARTED: "that attempt {} has started",
    nf.WebhookEvent.RETRYING: "that attempt {} failed and is retried",
    nf.WebhookEvent.ENDED: "of the end",
    nf.WebhookEvent.IDLE: "that attempt {} is idle",
    nf.WebhookEvent.HUNG: "that attempt {} hangs",
    nf.WebhookEvent.SLOW: "that attempt {} is slow",
}


def queue_webhooks(state: State, job: Job, event: nf.WebhookEvent) -> list[f.Fact]:
    """The facts that queue an event for the job's webhooks, and drop others if too many wait.
    Empty if the job has no webhooks.
    """
    if not job.spec.notify:
        return []
    queued = nf.WebhookQueued(job.id, job.webhooks_made + 1, event, job.last_attempt)
    if state.disk_full:
        return [queued]
    return [queued, *islice(_dropped(state, job), _DROPPED_AT_ONCE)]


def _dropped(state: State, job: Job) -> Iterator[f.Fact]:
    """Drop what exceeds the limits once the job has an event more."""
    more = len(job.spec.notify)
    why = f"it was dropped, because {OF_JOB_MAX} notices of this job waited"
    for number, hook in islice(
        job.queued_webhooks, max(0, len(job.queued_webhooks) + more - OF_JOB_MAX)
    ):
        yield nf.WebhookSettled(job.id, number, hook, why, dropped=True)
    waiting = state.queued_webhooks.get(job.user, UserWebhooks())
    count, spec_bytes = waiting.count + more, waiting.spec_bytes
    if job.id not in waiting.jobs:
        spec_bytes += job.spec_bytes
    for oldest in waiting.jobs:
        if count <= OF_USER_MAX and spec_bytes <= SPEC_BYTES_MAX:
            return
        if oldest == job.id:
            continue
        why = f"it was dropped, because {waiting.count} notices of the user's jobs waited"
        other = state.jobs[oldest]
        for number, hook in other.queued_webhooks:
            yield nf.WebhookSettled(oldest, number, hook, why, dropped=True)
        count -= len(other.queued_webhooks)
        spec_bytes -= other.spec_bytes


def apply_webhook(state: State, fact: nf.OfWebhooks, at: float) -> None:
    job = state.jobs[fact.job]
    match fact:
        case nf.WebhookQueued(_, number, event, attempt):
            job.webhooks_made = number
            for hook in range(len(job.spec.notify)):
                job.queued_webhooks[number, hook] = QueuedWebhook(event.value, at, attempt)
            state.webhook_jobs.add(job.id)
            waiting = state.queued_webhooks.setdefault(job.user, UserWebhooks())
            waiting.add(job.id, job.spec_bytes, len(job.spec.notify))
        case nf.WebhookSettled(_, number, hook, problem):
            webhook = job.queued_webhooks.pop((number, hook), None)
            if webhook is not None and problem:
                text = f"webhook {host_of(job, hook)} was not notified {words(webhook)}: {problem}"
                job.notes.add(at, text)
            if webhook is not None:
                take_webhooks(state, job, 1)
            if not job.queued_webhooks:
                state.webhook_jobs.discard(job.id)
        case nf.WebhookFailed(_, number, hook, problem):
            known = job.queued_webhooks.get((number, hook))
            if known is not None:
                job.queued_webhooks[number, hook] = known._replace(problem=problem)
        case _:
            assert_never(fact)


def take_webhooks(state: State, job: Job, count: int) -> None:
    """Count that `count` notices of a job wait no longer."""
    waiting = state.queued_webhooks[job.user]
    waiting.take(job.id, job.spec_bytes, count)
    if not waiting.jobs:
        del state.queued_webhooks[job.user]


def on_attempted(state: State, received: s.WebhookAttempted) -> Decision:
    """Record the result of a delivery.

    A result without a queued event is ignored, for example one from an earlier process.
    """
    job = state.jobs.get(received.job)
    place = received.number, received.hook
    webhook = None if job is None else job.queued_webhooks.get(place)
    if webhook is None:
        return Decision()
    if received.over:
        return Decision([nf.WebhookSettled(received.job, *place, received.problem)])
    if webhook.problem == received.problem:
        return Decision()
    return Decision([nf.WebhookFailed(received.job, *place, received.problem)])


def host_of(job: Job, hook: int) -> str:
    """The host of a webhook only, because the rest of the URL is often a secret."""
    return urlsplit(job.spec.notify[hook]).netloc


def words(webhook: QueuedWebhook) -> str:
    return _WORDS[nf.WebhookEvent(webhook.event)].format(webhook.attempt)

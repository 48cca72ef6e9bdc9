"""Events of a job's history, rendered from journal facts."""

from typing import Final

import msgspec

from muster.http.views import EventView
from muster.protocol.timestamp import timestamp
from orchestrator.api.redaction import without_secrets_inside
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.base import AttemptFact, TaskFact
from orchestrator.core.facts.service import ServiceFact
from orchestrator.core.model.state import Job
from orchestrator.core.webhooks.outbox import host_of

_HIDDEN: Final = ("secret", "vouch_key", "sha256")
"""Fields of facts that no API shows."""


def event_view(job: Job | None, seq: int, at: float, fact: f.Fact) -> EventView:
    """Render a fact. `job` is the job of the fact, and provides the names of its nodes."""
    fields = without_secrets_inside(msgspec.to_builtins(fact))
    for name in ("type", *_HIDDEN):
        fields.pop(name, None)
    return EventView(
        seq=seq,
        at=timestamp(at),
        kind=type(fact).__name__,
        job=getattr(fact, "job", None),
        text=_text(job, fact),
        fields=fields,
        id=event_id(seq, at),
    )


def event_id(seq: int, at: float) -> str:
    """Return the id of an event: its journal position and time. After a restore, another event may
    get the same position, but not with the same microsecond.
    """
    return f"{seq}-{int(at * 1e6):x}"


def _text(job: Job | None, fact: f.Fact) -> str:
    text = fact.describe()
    match fact:
        case TaskFact():
            node = f"node {fact.rank}"
            if job is not None:
                node = job.attempt(fact.attempt).tasks[fact.rank].node
            return f"attempt {fact.attempt}, {node}: {text}"
        case AttemptFact():
            return f"attempt {fact.attempt}: {text}"
        case ServiceFact():
            return f"node {fact.node} {text}"
        case nf.WebhookSettled(_, _, hook):
            return f"webhook {hook + 1 if job is None else host_of(job, hook)} {text}"
        case _:
            return text

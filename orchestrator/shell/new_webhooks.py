"""Webhook deliveries that nobody has taken yet, so that the sender never scans all pending ones."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from muster.protocol.ids import JobId
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.model.state import State

_log = structlog.get_logger("muster.webhooks")


class Delivery(NamedTuple):
    """An event of a job (`number`, from 1) for one webhook of its spec (`hook`, from 0)."""

    job: JobId
    number: int
    hook: int


class NewWebhooks:
    """Each pending delivery once, in order. At first those that `state` has."""

    def __init__(self, state: State) -> None:
        self._new = [
            Delivery(name, *place)
            for name in sorted(state.webhook_jobs)
            for place in state.jobs[name].queued_webhooks
        ]
        self._dropped: list[Delivery] = []

    def observe(self, state: State, facts: Sequence[f.Fact]) -> None:
        """Add the deliveries of facts that are already applied to `state`, and log the dropped."""
        dropped: Counter[tuple[JobId, str]] = Counter()
        for fact in facts:
            match fact:
                case nf.WebhookQueued(name, number) if name in state.jobs:
                    hooks = range(len(state.jobs[name].spec.notify))
                    self._new += [Delivery(name, number, hook) for hook in hooks]
                case nf.WebhookSettled(name, number, hook, problem, True):
                    self._dropped.append(Delivery(name, number, hook))
                    dropped[name, problem] += 1
                case _:
                    pass
        for (name, why), count in dropped.items():
            _log.warning("webhooks_dropped", job=name, queued_webhooks=count, why=why)

    def take(self) -> list[Delivery]:
        """Remove and return all. They are on disk if the state is settled."""
        new, self._new = self._new, []
        return new

    def take_dropped(self) -> list[Delivery]:
        """Remove and return all that were dropped, because too many waited."""
        dropped, self._dropped = self._dropped, []
        return dropped

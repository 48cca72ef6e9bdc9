"""Webhook deliveries that nobody has taken yet, so that the sender never scans all pending ones."""

from collections.abc import Sequence
from typing import NamedTuple

from muster.protocol.ids import JobId
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.model.state import State


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
            for name in sorted(state.telling)
            for place in state.jobs[name].notices
        ]

    def took_in(self, state: State, facts: Sequence[f.Fact]) -> None:
        """Add the deliveries of facts that are already applied to `state`."""
        for fact in facts:
            if isinstance(fact, nf.WebhookQueued) and fact.job in state.jobs:
                hooks = range(len(state.jobs[fact.job].spec.notify))
                self._new += [Delivery(fact.job, fact.number, hook) for hook in hooks]

    def take(self) -> list[Delivery]:
        """Remove and return all. They are on disk if the state is settled."""
        new, self._new = self._new, []
        return new

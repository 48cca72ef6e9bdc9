"""The coordinator's journal: what was synced outlives a crash, what was only staged does not."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

import msgspec

from muster.protocol.ids import JobId
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(f.Fact)


class Disk:
    """Durable facts with the wall time at which they were recorded.

    `shadow` is the state that replaying what is synced leads to, kept up to date.
    """

    def __init__(self) -> None:
        self.synced: list[tuple[bytes, float]] = []
        self.staged: list[tuple[f.Fact, float]] = []
        self.shadow = State()

    def stage(self, fact: f.Fact, at: float) -> None:
        self.staged.append((fact, at))

    def sync(self) -> list[f.Fact]:
        """Everything staged is now durable; returns it."""
        done = self.staged
        self.staged = []
        for fact, at in done:
            self.synced.append((_encoder.encode(fact), at))
            apply(self.shadow, fact, at)
        return [fact for fact, _ in done]

    def put_back(self, synced: list[tuple[bytes, float]]) -> None:
        """A backup takes the place of the journal."""
        self.synced, self.staged = list(synced), []
        self.shadow = self.replay()

    def crash(self) -> int:
        """Lose what is not synced; returns how many facts that were."""
        lost = len(self.staged)
        self.staged = []
        return lost

    def replay(self, without: Container[JobId] = ()) -> State:
        """The state that a new process reads from here, `without` jobs that are in the archive."""
        state = State()
        for fact, at in self._facts():
            if getattr(fact, "job", None) not in without:
                apply(state, fact, at)
        return state

    def histories(self, jobs: Container[JobId]) -> dict[JobId, list[tuple[f.Fact, float]]]:
        """The facts of each job."""
        found: dict[JobId, list[tuple[f.Fact, float]]] = {}
        for fact, at in self._facts():
            job = getattr(fact, "job", None)
            if job is not None and job in jobs:
                found.setdefault(job, []).append((fact, at))
        return found

    def _facts(self) -> Iterator[tuple[f.Fact, float]]:
        return ((_decoder.decode(data), at) for data, at in self.synced)

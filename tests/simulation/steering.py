"""Requests of users after the submit: hold, release, change, signal, and explain."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from muster.protocol.ids import JobId
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.views.explain import explain
from tests.simulation.checkers import Checkers
from tests.simulation.clients import Client
from tests.simulation.coordinator import Coordinator
from tests.simulation.world import World

FIRST_STEERED: Final = 200
"""From this seed on. Those before stay the runs that they were."""

WINDOWS: Final[tuple[type[f.Fact], ...]] = (f.JobHeld, f.JobChanged, f.SignalRequested)
"""Moments in which nothing must be half done, like those of the faults."""

_WRONG_STATE: Final = frozenset(
    {"already_ended", "not_waiting", "not_held", "not_running", "limit_over"}
)


class Steering:
    """All users of a run, each with what they did last. In peace, what is held is released."""

    def __init__(
        self, world: World, coordinator: Coordinator, checkers: Checkers, clients: list[Client]
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.checkers = checkers
        self.rng = random.Random(f"steering {world.seed}")
        self.peace = False
        self._asked: dict[JobId, int] = {}
        for client in clients:
            self._later(client)

    def make_peace(self, clients: list[Client]) -> None:
        self.peace = True
        for client in clients:
            self._release_at_last(client)

    def _later(self, client: Client) -> None:
        # The delays reach jobs of every age, like those of cancels.
        delay_s = self.rng.choice((0.05, 1.0, 10.0, 100.0)) * self.rng.random()
        self.world.at(delay_s, partial(self._act, client))

    def _act(self, client: Client) -> None:
        if self.peace:
            return
        if client.job is not None and self.coordinator.listening:
            rng = self.rng
            act: Callable[[JobId], None] = rng.choice(
                (self._hold, self._release, self._release, self._set, self._signal, self._explain)
            )
            act(client.job)
        self._later(client)

    def _change(self, job: JobId, **wanted: float | bool) -> None:
        self.checkers.promises.change_asked(job, wanted)
        self._asked[job] = self._asked.get(job, 0) + 1
        self.coordinator.ask(
            lambda request: s.ChangeReceived(request, job, "ada", **wanted),  # type: ignore[arg-type]
            partial(self._changed, job, self._asked[job], wanted),
        )

    def _changed(
        self, job: JobId, number: int, wanted: dict[str, int | float | bool], result: a.Result
    ) -> None:
        if not isinstance(result, a.Changed):
            self._declined(result)
            return
        self.world.met["hold" if wanted.get("hold") else "change"] += result.anything
        # A later request may already have changed the job again.
        if number == self._asked[job]:
            self.checkers.promises.change_acked(job, wanted)

    def _declined(self, result: a.Result) -> None:
        if not isinstance(result, a.Declined) or result.code not in _WRONG_STATE:
            self.checkers.fail(f"steering: answered with {result}")

    def _hold(self, job: JobId) -> None:
        self._change(job, hold=True)

    def _release(self, job: JobId) -> None:
        self._change(job, hold=False)

    def _set(self, job: JobId) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self._change(job, priority=rng.choice((10, 50, 90)))
        elif self.coordinator.state.jobs[job].spec.time_limit_s is not None:
            self._change(job, time_limit_s=rng.uniform(60.0, 440.0))

    def _signal(self, job: JobId) -> None:
        self.coordinator.ask(
            lambda request: s.SignalReceived(request, job, "ada", "SIGUSR2"), self._signalled
        )

    def _signalled(self, result: a.Result) -> None:
        if isinstance(result, a.Signalled):
            self.world.met["signal_asked"] += 1
        else:
            self._declined(result)

    def _explain(self, job: JobId) -> None:
        """Asked at any moment, it has an answer."""
        state = self.coordinator.state
        if job in state.jobs:
            explain(state, state.jobs[job], self.coordinator.now())
            self.world.met["explained"] += 1

    def _release_at_last(self, client: Client) -> None:
        """Repeat until it is received: the coordinator may be restarting."""
        state = self.coordinator.state
        job = client.job
        if self.coordinator.listening and job is not None and job in state.held:
            self._release(job)
        self.world.at(20.0, partial(self._release_at_last, client))

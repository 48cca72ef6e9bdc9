"""Users: they submit with an idempotency key until somebody answers, and change their minds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from muster.protocol.ids import JobId
from muster.spec.model import JobSpec
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from tests.simulation.checkers import Checkers
from tests.simulation.coordinator import Coordinator
from tests.simulation.world import World

PATIENCE_S = 8.0


@dataclass(slots=True)
class Rudeness:
    """Probabilities of trouble on the users' side."""

    answer_lost: float = 0.0  # the answer never arrives, so the same is asked again
    cancels: float = 0.0
    cancels_twice: float = 0.0
    forces: float = 0.0


class Client:
    """A user with one job. The client asks until it has an answer, and believes the answer; it
    believes that no nodes will do only once there is peace.
    """

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        checkers: Checkers,
        spec: JobSpec,
        rudeness: Rudeness,
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.checkers = checkers
        self.spec = spec
        self.rudeness = rudeness
        self.job: JobId | None = None
        self.wants_cancel = False
        self.cancel_heard = False
        self.declined = False
        self.peace = False
        self._force = False
        self._tries = 0

    @property
    def content(self) -> bool:
        """True if everything that was asked has been answered."""
        if self.job is None:
            return self.declined
        return self.cancel_heard or not self.wants_cancel

    def submit(self) -> None:
        if self.job is not None or self.declined:
            return
        self._tries += 1
        if self._tries > 1:
            self.world.met["submit_repeated"] += 1
        key = f"key-{self.spec.name}"
        self.coordinator.ask(
            lambda request: s.SubmitReceived(request, self.spec, "ada", key, self.spec.name),
            self._submitted,
        )
        self.world.at(PATIENCE_S * self.world.rng.uniform(0.5, 1.5), self.submit)

    def _submitted(self, result: a.Result) -> None:
        if isinstance(result, a.Submitted):
            self.checkers.promises.submit_acked(self.spec.name, result.job)
            if self.world.chance(self.rudeness.answer_lost):
                self.world.met["answer_lost"] += 1
                return
            if self.job is None:
                self.job = result.job
                self._plan_cancel()
        elif isinstance(result, a.Declined):
            if result.code != "unsatisfiable":
                self.checkers.fail(f"submit of {self.spec.name} declined: {result.text}")
            self.declined = self.peace and self.job is None

    def _plan_cancel(self) -> None:
        world = self.world
        if world.chance(self.rudeness.cancels):
            # The delays reach jobs of every age: queued, preparing, running, stopping, ended.
            delay_s = world.rng.choice((0.0, 0.02, 0.3, 2.0, 20.0, 120.0)) * world.rng.random()
            world.at(delay_s, self.cancel)

    def cancel(self, *, force: bool = False) -> None:
        self.wants_cancel = True
        self._force = self._force or force or self.world.chance(self.rudeness.forces)
        self._ask_cancel()

    def _ask_cancel(self) -> None:
        if self.cancel_heard or self.job is None:
            return
        job, force = self.job, self._force
        grace_s = self.world.rng.choice((None, 0.0, 5.0))
        self.world.met["cancel_forced" if force else "cancel"] += 1
        self.coordinator.ask(
            lambda request: s.CancelReceived(request, job, "ada", "", grace_s, force),
            partial(self._cancelled, job),
        )
        self.world.at(PATIENCE_S * self.world.rng.uniform(0.5, 1.5), self._ask_cancel)

    def _cancelled(self, job: JobId, result: a.Result) -> None:
        if not isinstance(result, a.Cancelled):
            self.checkers.fail(f"cancel of job {job} answered with {result}")
            return
        self.checkers.promises.cancel_acked(job, already_ended=result.already_ended)
        if self.world.chance(self.rudeness.answer_lost):
            self.world.met["answer_lost"] += 1
            return
        self.cancel_heard = True
        if self.world.chance(self.rudeness.cancels_twice):
            self.world.met["cancel_twice"] += 1
            self.cancel_heard = False
            self._force = self._force or self.world.chance(0.5)
            self.world.at(self.world.rng.uniform(0.0, 5.0), self._ask_cancel)

"""Other users of jobs and nodes: webhooks, users who look at stacks, and operators who have given
up a node."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import msgspec

from muster.protocol.ids import NodeName
from muster.spec.model import Idle, IdleAction, JobSpec
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from tests.simulation.checkers import Checkers
from tests.simulation.clients import Client
from tests.simulation.coordinator import Coordinator
from tests.simulation.draining import Draining
from tests.simulation.health import FIRST_SEEN
from tests.simulation.world import World

_NOTIFY_EVERY_S: Final = 3.0
_NOT_NOW: Final = frozenset({"not_running", "node_connected", "node_busy", "unknown_node"})


def with_webhook(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Give the job a webhook, in some runs."""
    own = random.Random(f"webhook {world.seed} {number}")
    if world.seed < FIRST_SEEN or own.random() < 0.5:
        return spec
    return msgspec.structs.replace(spec, notify=("https://ci.example/hook",))


def with_idle(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Give the job an idle action (notify or stop), in some runs."""
    own = random.Random(f"idle {world.seed} {number}")
    if world.seed < FIRST_SEEN or own.random() < 0.5:
        return spec
    action = own.choice((IdleAction.NOTIFY, IdleAction.STOP))
    return msgspec.structs.replace(spec, idle=Idle(for_s=60.0, action=action))


class Onlookers:
    """All onlookers of a run. In peace every webhook receives all its messages, and nodes are left
    alone.

    `draining`: drains of a node go with it. Nodes are removed if no other agent claims their names.
    """

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        checkers: Checkers,
        clients: list[Client],
        draining: Draining | None,
        *,
        removes: bool,
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.checkers = checkers
        self.clients = clients
        self.draining = draining
        self.removes = removes
        self.rng = random.Random(f"onlookers {world.seed}")
        self.peace = False
        if world.seed >= FIRST_SEEN:
            self._notify()
            self._later()

    def make_peace(self) -> None:
        self.peace = True

    # --- webhooks -----------------------------------------------------------------------------

    def _notify(self) -> None:
        jobs = self.coordinator.state.jobs
        due = [
            (job, number, hook)
            for job in sorted(self.coordinator.state.webhook_jobs)
            for number, hook in jobs[job].queued_webhooks
        ]
        for job, number, hook in due:
            heard = self.peace or self.rng.random() < 0.6
            over = heard or self.rng.random() < 0.3
            self.world.met["notice_tried"] += 1
            if self.coordinator.listening:
                problem = "" if heard else "it answers 503"
                self.coordinator.put(s.WebhookAttempted(job, number, hook, problem, over))
        self.world.at(_NOTIFY_EVERY_S, self._notify)

    # --- people -------------------------------------------------------------------------------

    def _later(self) -> None:
        self.world.at(self.rng.expovariate(1 / 10.0), self._act)

    def _act(self) -> None:
        if self.peace:
            return
        if self.coordinator.listening:
            self.rng.choice((self._look, self._remove))()
        self._later()

    def _look(self) -> None:
        known = [client.job for client in self.clients if client.job is not None]
        if known:
            job = self.rng.choice(known)
            self.coordinator.ask(
                lambda request: s.StacksReceived(request, job), partial(self._answered, "looked")
            )

    def _remove(self) -> None:
        """A node that is not there; it may come again, as if there had been none of its name."""
        nodes = self.coordinator.state.nodes
        away: list[NodeName] = [name for name, node in nodes.items() if node.session is None]
        if away and self.removes:
            name = self.rng.choice(away)
            if self.draining is not None:
                self.draining.forget(name)
            self.coordinator.ask(
                lambda request: s.RemoveReceived(request, name, "ana"),
                partial(self._answered, "removed"),
            )

    def _answered(self, what: str, result: a.Result) -> None:
        if isinstance(result, a.Declined):
            if result.code not in _NOT_NOW:
                self.checkers.fail(f"{what}: answered with {result}")
            return
        self.world.met[what] += 1

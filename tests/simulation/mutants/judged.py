"""Planted bugs of what is judged: silence, leases of jobs, boots, checkpoints and hardware."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Hello, PrepareTask, Refused
from muster.protocol.observations.hardware_events import OOM
from muster.spec.model import JobSpec
from orchestrator.core.engine import decide, react
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.service import HardwareReported
from orchestrator.core.gangs import launch, retry_policy
from orchestrator.core.model import leases
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Job, State
from orchestrator.core.nodes.admission import refuse
from tests.simulation.leases import with_checkpoints
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both, _put, _wrap
from tests.simulation.mutants.planting import ALL_LEASED, COORDINATOR, everywhere
from tests.simulation.world import World


def _not_told(real: Any) -> Any:
    """Nodes think that their tasks have no lease."""

    def prepare_command(*given: Any) -> PrepareTask:
        prepare: PrepareTask = real(*given)
        return msgspec.structs.replace(prepare, lease_s=None)

    return prepare_command


def _boots_alike(real: Any) -> Any:
    """Treat work on a rebooted node as alive, if its folder is there."""

    def hello(state: State, session: Any, said: Hello, *more: Any) -> Decision:
        node = state.nodes.get(said.node)
        same = said if node is None else msgspec.structs.replace(said, boot_id=node.boot_id)
        decision: Decision = real(state, session, same, *more)
        return decision

    return hello


def _one_boot_for_good(real: Any) -> Any:
    """A node that has rebooted is taken for a copy of itself."""

    def refuse(state: State, hello: Hello, *more: Any) -> Refused | None:
        node = state.nodes.get(hello.node)
        rebooted = node is not None and node.boot_id != hello.boot_id
        if node is not None and node.link is not LinkState.OFFLINE and rebooted:
            return Refused("duplicate_identity", "it is there already", soon=True)
        found: Refused | None = real(state, hello, *more)
        return found

    return refuse


def _patient(_: World, __: int, spec: JobSpec) -> JobSpec:
    """A job with checkpoints that is tried again for long. That is no bug."""
    retry = msgspec.structs.replace(spec.retry, infra=20)
    return msgspec.structs.replace(spec, checkpoint_dir="/data/ckpt", retry=retry)


def _tried_for_ever(_: Job) -> bool:
    return False


def _nobody_is_drained(*_: Any) -> Decision:
    return Decision()


def _of_nobody(_: State, fact: f.Fact) -> list[f.Fact]:
    if isinstance(fact, HardwareReported) and fact.event.code != OOM:
        return [msgspec.structs.replace(fact, attempts=())]
    return [fact]


def _of_everybody(state: State, fact: f.Fact) -> list[f.Fact]:
    if isinstance(fact, HardwareReported) and fact.event.code != OOM:
        holders = tuple(sorted(state.nodes[fact.node].holders))
        return [msgspec.structs.replace(fact, attempts=holders)]
    return [fact]


def _every_event_is_news(real: Any) -> Any:
    def seen(state: State, name: NodeName, events: Any, now: Any) -> list[f.Fact]:
        node = state.nodes.get(name)
        if node is not None:
            node.hardware_heard = ("", -1)
        found: list[f.Fact] = real(state, name, events, now)
        return found

    return seen


MUTANTS = (
    Mutant(
        "the margin is too small for the ranks to end",
        everywhere(leases.margin_s, lambda _: lambda lease_s: 3.0),
        ("I3", "I4", "I5"),
        seed=429,
    ),
    Mutant(
        "agents do not receive the leases of jobs",
        everywhere(launch.prepare_command, _not_told),
        ("I3", "I4", "I5"),
        seed=430,
    ),
    Mutant(
        "a node that has rebooted may not come back",
        everywhere(refuse, _one_boot_for_good),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "a job that writes no checkpoints is tried for ever",
        _both(
            _both(ALL_LEASED, everywhere(with_checkpoints, lambda _: _patient)),
            _put(retry_policy, "without_progress", _tried_for_ever),
        ),
        ("progress",),
        seed=407,
    ),
    Mutant(
        "hardware that has failed takes no node out of service",
        _put(react, "react_to_hardware", _nobody_is_drained),
        ("hardware",),
        seed=800,
    ),
    Mutant(
        "a GPU that has failed is nobody's",
        COORDINATOR.facts(_of_nobody),
        ("hardware",),
        seed=863,
    ),
    Mutant(
        "a GPU that has failed is everybody's",
        COORDINATOR.facts(_of_everybody),
        ("hardware",),
        seed=920,
    ),
    Mutant(
        "what hardware has reported is reported again on each new connection",
        _wrap(decide, "hardware_facts", _every_event_is_news),
        ("hardware",),
        seed=800,
    ),
)

"""Planted bugs of what is judged: silence, leases of jobs, boots, checkpoints and hardware."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Hello, Refused
from orchestrator.core.engine import decide, react, timers
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs import launch, retry_policy
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Job, Node, State, Task
from orchestrator.core.nodes import admission, hardware, liveness
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put, _wrap


def _never_together(*_: Any) -> None:
    """One after the other is lost, however many there are."""


def _let_go_by_itself(real: Any) -> Any:
    """Whoever is looked at next is lost."""

    def fired(state: State, name: NodeName, now: Instant, limits: Limits) -> Decision:
        mass_outage = state.mass_outage
        if mass_outage is not None:
            state.mass_outage = msgspec.structs.replace(mass_outage, at=-mass_outage.lasts_s)
        decision: Decision = real(state, name, now, limits)
        state.mass_outage = mass_outage
        return decision

    return fired


def _its_own_from_nowhere(state: State, node: Node, task: Task, limits: Limits) -> float:
    """Its length is counted, and not from when."""
    asked_s = state.jobs[task.job].spec.lease_s
    return node.lease_until if asked_s is None else node.heard_at + asked_s


def _boots_alike(real: Any) -> Any:
    """What was under way on a node that has rebooted is still there, if its folder is."""

    def hello(state: State, session: Any, said: Hello, *more: Any) -> Decision:
        node = state.nodes.get(said.node)
        same = said if node is None else msgspec.structs.replace(said, boot_id=node.boot_id)
        decision: Decision = real(state, session, same, *more)
        return decision

    return hello


def _one_boot_for_good(real: Any) -> Any:
    """A node that has rebooted is taken for a copy of itself."""

    def refuse(node: Node, hello: Hello, peer: str) -> Refused | None:
        if node.link is not LinkState.OFFLINE and node.boot_id != hello.boot_id:
            return Refused("duplicate_identity", "it is there already", soon=True)
        found: Refused | None = real(node, hello, peer)
        return found

    return refuse


def _tried_for_ever(_: Job) -> bool:
    return False


def _nobody_is_drained(*_: Any) -> Decision:
    return Decision()


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
        "there is no mass outage",
        _put(liveness, "_fell_silent_together", _never_together),
        ("mass outage",),
        seed=458,
    ),
    Mutant(
        "a mass outage does not last",
        _wrap(timers, "node_timer_fired", _let_go_by_itself),
        ("mass outage",),
        seed=458,
    ),
    Mutant(
        "a job's own lease counts without a margin",
        _put(liveness, "gone_at", _its_own_from_nowhere),
        ("I3", "I4", "I5"),
        seed=490,
    ),
    Mutant(
        "agents are not told of the leases of jobs",
        _put(launch, "own_lease_s", lambda *_: None),
        ("I3", "I4", "I5"),
        seed=445,
    ),
    Mutant(
        "a node that has rebooted may not come back",
        _wrap(admission, "_refuse_second", _one_boot_for_good),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "a job that writes no checkpoints is tried for ever",
        _put(retry_policy, "without_progress", _tried_for_ever),
        ("progress",),
        seed=501,
    ),
    Mutant(
        "hardware that has failed takes no node out of service",
        _put(react, "react_to_hardware", _nobody_is_drained),
        ("hardware",),
        seed=800,
    ),
    Mutant(
        "a GPU that has failed is nobody's",
        _put(hardware, "_has", lambda *_: False),
        ("hardware",),
        seed=863,
    ),
    Mutant(
        "a GPU that has failed is everybody's",
        _put(hardware, "_has", lambda *_: True),
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

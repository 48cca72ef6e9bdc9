"""Planted bugs of leases, connections and timers, and in what becomes of a lost command."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from agent.core import decide as agent_decide
from agent.core import effects as agent_actions
from agent.core import facts as agent_facts
from agent.core.shim_protocol import ShimLease, ShimPhase
from agent.core.state import State as AgentState
from agent.core.task import LATER
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Heartbeat, TaskReport
from muster.protocol.link.sequencing import Link
from muster.protocol.states import TaskState
from orchestrator.core.engine import decide, react, timers
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model import leases
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State
from tests.simulation.faults import Swarm
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both, _put, _wrap
from tests.simulation.mutants.planting import AGENT, ALL_LEASED, COORDINATOR, everywhere


def _no_lease_after_restart(_: State, fact: f.Fact) -> list[f.Fact]:
    if isinstance(fact, lf.NodeAwaited):
        return [msgspec.structs.replace(fact, answered_at=-1000.0)]
    return [fact]


def _lost_when_silent(state: State, fact: f.Fact) -> None:
    if isinstance(fact, lf.NodeDisconnected):
        state.nodes[fact.node].answered_at -= 1000.0


def _lease_from_the_answer(real: Any) -> Any:
    def decide(state: AgentState, received: Any, now: Instant) -> Any:
        decision = real(state, received, now)
        decision.facts = [
            agent_facts.Acknowledged(now.mono)
            if isinstance(fact, agent_facts.Acknowledged)
            else fact
            for fact in decision.facts
        ]
        return decision

    return decide


def _endless(_: AgentState, effect: agent_actions.Effect) -> list[agent_actions.Effect]:
    if isinstance(effect, agent_actions.SendToShim) and isinstance(effect.command, ShimLease):
        return [agent_actions.SendToShim(effect.task, ShimLease(1e8))]
    return [effect]


def stumbles_as_it_asks(_: Any) -> Any:
    """An agent is stopped just after a heartbeat, whose answer waits for it; then it is cut off.
    That is no bug, and by chance alone it is rare."""

    def stumble(swarm: Swarm) -> bool:
        node = swarm.busy()
        if not node.up or node.frozen or "perform" in vars(node):
            return False
        perform, lease_s = node.perform, swarm.cluster.limits.lease_s
        frozen_s = lease_s * swarm.world.rng.uniform(0.3, 0.9)

        def asks(action: agent_actions.Effect) -> None:
            perform(action)
            if isinstance(action, agent_actions.SendReport) and isinstance(
                action.report, Heartbeat
            ):
                del vars(node)["perform"]
                if node.up and not node.frozen:
                    node.freeze()
                    swarm.world.at(frozen_s, partial(swarm.cut_off, node))

        vars(node)["perform"] = asks
        return True

    return stumble


def _wall_timers(real: Any) -> Any:
    def phase_timers(attempt: Any, now: Instant, limits: Limits) -> list[a.Effect]:
        late = now.wall % 60.0
        found = real(attempt, now, limits)
        return [msgspec.structs.replace(action, at=action.at + late) for action in found]

    return phase_timers


def _says_clean_at_exit(_: AgentState, effect: agent_actions.Effect) -> list[agent_actions.Effect]:
    if isinstance(effect, agent_actions.SendReport) and isinstance(effect.report, TaskReport):
        report = effect.report
        if report.state is TaskState.EXITED:
            clean = msgspec.structs.replace(report, state=TaskState.CLEANED)
            return [agent_actions.SendReport(clean)]
    return [effect]


def _every_status_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in ShimPhase:
        monkeypatch.setitem(LATER, phase, frozenset(ShimPhase))


def _nothing_again(_: State, fact: f.Fact) -> list[f.Fact]:
    """No new connection counts as one that has been synchronised."""
    return [] if isinstance(fact, lf.NodeSynced) else [fact]


def _nothing_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decide, react):
        monkeypatch.setattr(module, "commands_for_reported_task", lambda *_: [])


def _accepts_gaps(link: Link, seq: int) -> bool:
    new = seq > link.received
    link.received = max(seq, link.received)
    return new


def _cancel_only_noted(real: Any) -> Any:
    def cancel(state: State, given: Any) -> Decision:
        decision: Decision = real(state, given)
        decision.facts = [x for x in decision.facts if not isinstance(x, f.StopRequested)]
        return decision

    return cancel


def _waits_for_all(real: Any) -> Any:
    """The gang of a failed rank is stopped when all of it has ended."""

    def cause(task: Any, report: TaskReport, *more: Any) -> Any:
        return real(task, report, *more) if report.exit is not None and report.exit.ok else None

    return cause


MUTANTS = (
    Mutant(
        "a shim's lease never ends",
        AGENT.effects(_endless),
        ("I3", "I4", "I5"),
        seed=7,
    ),
    Mutant(
        "the coordinator waits no longer than the agent",
        everywhere(leases.margin_s, lambda _: lambda lease_s: 0.0),
        ("I3", "I4", "I5"),
        seed=1,
    ),
    Mutant(
        "a new coordinator grants no lease",
        COORDINATOR.facts(_no_lease_after_restart),
        ("I3", "I4", "I5"),
        seed=26,
    ),
    Mutant(
        "a node is lost when it is silent",
        COORDINATOR.state(_lost_when_silent),
        ("I3", "I4", "I5"),
        seed=3,
    ),
    Mutant(
        "a lease counts from the answer",
        _both(
            ALL_LEASED,
            _both(
                _wrap(Swarm, "agent_stumble", stumbles_as_it_asks),
                everywhere(agent_decide.decide, _lease_from_the_answer),
            ),
        ),
        ("I3", "I4", "I5"),
        seed=131,
    ),
    Mutant(
        "a task is called clean when it has exited",
        AGENT.effects(_says_clean_at_exit),
        ("I3", "I4", "I5"),
        seed=4,
    ),
    Mutant(
        "a timer looks at the wall clock",
        _wrap(react, "phase_timers", _wall_timers),
        ("I9",),
        seed=20,
    ),
    Mutant(
        "a lost command is not said again",
        COORDINATOR.facts(_nothing_again),
        ("I10", "I4"),
        seed=26,
    ),
    Mutant(
        "a gap between frames goes unnoticed",
        _put(Link, "accept", _accepts_gaps),
        ("I10", "I4", "network"),
        seed=1357,
    ),
    Mutant(
        "an agent never doubts a silent coordinator",
        _put(agent_decide, "SILENT_BEATS", 10**9),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "the coordinator never doubts a silent node",
        _put(timers, "node_timer_fired", lambda *_: Decision()),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "timers are not set again after a restart",
        _put(decide, "restart_timers", lambda *_: []),
        ("I10",),
        seed=6,
    ),
    Mutant(
        "a task that its node has lost is waited for",
        _put(decide, "tasks_on", lambda *_: []),
        ("I10",),
        seed=6,
    ),
    Mutant("nobody tells a node to forget", _nothing_owed, ("I10", "I4"), seed=1),
    Mutant(
        "statuses that crossed are taken as they come",
        _every_status_is_later,
        ("I10", "I4"),
        seed=0,
    ),
    Mutant(
        "a cancel is noted and nothing is stopped",
        _wrap(decide, "cancel", _cancel_only_noted),
        ("I10",),
        seed=34,
    ),
    Mutant("a failed rank stops nobody", _wrap(decide, "from_report", _waits_for_all), ("I10",)),
)

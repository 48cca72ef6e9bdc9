"""Planted bugs of nodes in and out of service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from msgspec import structs

from muster.protocol.outcome import CauseCode, Outcome
from orchestrator.core.engine import react, timers
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.base import Durability
from orchestrator.core.gangs.retry_policy import after_attempt
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.scheduling import elastic, placement
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both, _durable, _put, _wrap
from tests.simulation.mutants.planting import COORDINATOR


def _blind_to_drains(real: Any) -> Any:
    def busy(state: State, spec: Any, node: Node) -> Any:
        rejection = real(state, spec, node)
        return None if rejection is not None and rejection.code == "drained" else rejection

    return busy


def _drained(state: State, fact: f.Fact) -> AttemptPhase | None:
    """The phase of the attempt that a drain stops."""
    if isinstance(fact, f.StopRequested) and fact.cause.code is CauseCode.DRAINED:
        return state.jobs[fact.job].attempt(fact.attempt).phase
    return None


def _nobody_leaves(state: State, fact: f.Fact) -> list[f.Fact]:
    return [] if _drained(state, fact) is AttemptPhase.RUNNING else [fact]


def _only_at_the_end(state: State, fact: f.Fact) -> list[f.Fact]:
    """Let a task in preparation start."""
    ready = _drained(state, fact) in (AttemptPhase.PREPARING, AttemptPhase.ARRANGING)
    return [] if ready else [fact]


def _pays_for_it(job: Job, attempt: Attempt, *, spare: bool) -> f.JobEnded | f.RetryScheduled:
    cause = attempt.cause
    if cause is None or cause.code is not CauseCode.DRAINED:
        return after_attempt(job, attempt, spare=spare)
    lost = structs.replace(cause, code=CauseCode.NODE_LOST)
    decided = after_attempt(job, dataclasses.replace(attempt, cause=lost), spare=spare)
    return f.JobEnded(job.id, cause) if isinstance(decided, f.JobEnded) else decided


def _no_mass_outage(real: Any) -> Any:
    def quarantined(state: State, node: Node, limits: Limits) -> list[f.Fact]:
        bold = Quarantine(limits.quarantine.jobs, limits.quarantine.forgiven_after, 1.0)
        found: list[f.Fact] = real(state, node, Limits(quarantine=bold))
        return found

    return quarantined


def _blames_for_programs(real: Any) -> Any:
    def judged(state: State, job: Job, attempt: Any, limits: Limits, *, spare: bool) -> Any:
        if attempt.cause is not None and attempt.cause.outcome is Outcome.USER:
            name = attempt.tasks[0].node
            if all(fault.job != job.id for fault in state.nodes[name].faults):
                return [sf.NodeFaultRecorded(name, job.id, attempt.number, "failed")]
            return []
        return real(state, job, attempt, limits, spare=spare)

    return judged


def _never(_: Any) -> Callable[..., list[Any]]:
    return lambda *_: []


MUTANTS = (
    Mutant(
        "a drained node is free for the next job",
        _both(
            _wrap(placement, "busy", _blind_to_drains),
            _wrap(elastic, "busy", _blind_to_drains),
        ),
        ("drain", "books", "queue", "explain"),
        seed=380,
    ),
    Mutant(
        "a drain is acknowledged before it is on disk",
        _durable(sf.NodeDrained, Durability.LAZY),
        ("I1", "drain"),
        seed=380,
    ),
    Mutant(
        "a gang that is not ready when its node is drained starts there",
        COORDINATOR.facts(_only_at_the_end),
        ("books", "drain"),
        seed=385,
    ),
    Mutant(
        "nobody leaves at a deadline",
        COORDINATOR.facts(_nobody_leaves),
        ("books", "drain"),
        seed=382,
    ),
    Mutant(
        "the last retry is spent on a drain",
        _put(react, "after_attempt", _pays_for_it),
        ("drain",),
        seed=385,
    ),
    Mutant(
        "a deadline is forgotten in a restart",
        _wrap(timers, "drain_timer", _never),
        ("drain",),
        seed=386,
    ),
    Mutant(
        "a whole pool is quarantined",
        _wrap(react, "quarantined", _no_mass_outage),
        ("quarantine",),
        seed=384,
    ),
    Mutant(
        "a node is quarantined for what programs do",
        _wrap(react, "judged", _blames_for_programs),
        ("quarantine",),
        seed=387,
    ),
)

"""Planted bugs of nodes in and out of service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from muster.protocol.outcome import CauseCode, Outcome
from orchestrator.core.engine import react, timers
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.base import Durability
from orchestrator.core.gangs import retry_policy
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.state import Job, Node, State
from orchestrator.core.nodes import drains
from orchestrator.core.nodes import quarantine as q
from orchestrator.core.scheduling import elastic, placement
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both, _durable, _wrap


def _blind_to_drains(real: Any) -> Any:
    def busy(state: State, spec: Any, node: Node) -> Any:
        lack = real(state, spec, node)
        return None if lack is not None and lack.code == "drained" else lack

    return busy


def _nobody_leaves(_: Any) -> Any:
    return lambda *_: []


def _only_at_the_end(real: Any) -> Any:
    """What is being made ready is left to start."""

    def end(state: State, task: Any, cause: Any, *, over: bool, force: bool) -> list[f.Fact]:
        found: list[f.Fact] = real(state, task, cause, over=over, force=force)
        return found if over else []

    return end


def _pays_for_it(real: Any) -> Any:
    def retry(job: Job, attempt: Any, cause: Any, *, spare: bool) -> Any:
        if cause.code is CauseCode.DRAINED:
            cause = replace(cause, code=CauseCode.NODE_LOST)
        return real(job, attempt, cause, spare=spare)

    return retry


def _no_brake(real: Any) -> Any:
    def quarantined(state: State, node: Node, limits: Limits) -> list[f.Fact]:
        bold = Quarantine(limits.quarantine.jobs, limits.quarantine.forgiven_after, 1.0)
        found: list[f.Fact] = real(state, node, Limits(quarantine=bold))
        return found

    return quarantined


def _blames_for_programs(real: Any) -> Any:
    def judged(state: State, job: Job, attempt: Any, limits: Limits, *, spare: bool) -> Any:
        if attempt.cause is not None and attempt.cause.outcome is Outcome.USER:
            return q._blamed(state, job, attempt, {attempt.tasks[0].node: "failed"})
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
        ("drain", "books", "queue"),
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
        _wrap(drains, "_end", _only_at_the_end),
        ("books", "drain"),
        seed=385,
    ),
    Mutant(
        "nobody leaves at a deadline",
        _wrap(drains, "_leave", _nobody_leaves),
        ("books", "drain"),
        seed=380,
    ),
    Mutant(
        "the last retry is spent on a drain",
        _wrap(retry_policy, "_retry", _pays_for_it),
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
        _wrap(react, "quarantined", _no_brake),
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

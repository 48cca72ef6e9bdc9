"""Planted bugs of what users do to their jobs after the submit."""

from __future__ import annotations

from typing import Any

from orchestrator.core.engine import decide
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.placement import Considered, PlacementVerdict
from orchestrator.core.views import explain
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _durable, _unseen, _wrap


def _overlooks_holders(real: Any) -> Any:
    """Its own idea of which nodes are free."""

    def consider(state: State, job: Job) -> Considered:
        found: Considered = real(state, job)
        lacks = (
            PlacementVerdict(v.node) if v.rejection and v.rejection.code == "busy" else v
            for v in found.verdicts
        )
        verdicts = tuple(lacks)
        free = tuple(v.node.name for v in verdicts if v.rejection is None)
        return Considered(verdicts, free if len(free) >= job.spec.nodes else ())

    return consider


def _released_by_any_change(real: Any) -> Any:
    def change(state: State, asked: Any, now: Any) -> Decision:
        decision: Decision = real(state, asked, now)
        changed = [x.job for x in decision.facts if isinstance(x, f.JobChanged)]
        decision.facts += [f.JobReleased(job, "ada") for job in changed if job in state.held]
        return decision

    return change


def _changed_after_its_end(real: Any) -> Any:
    def change(state: State, asked: Any, now: Any) -> Decision:
        decision: Decision = real(state, asked, now)
        job = state.jobs.get(asked.job)
        if job is not None and job.phase is JobPhase.ENDED:
            decision.facts.append(f.JobChanged(job.id, "ada", priority=50))
        return decision

    return change


MUTANTS = (
    Mutant(
        "a hold is acknowledged before it is on disk",
        _durable(f.JobHeld, Durability.LAZY),
        ("I1",),
        seed=200,
    ),
    Mutant(
        "a signal is sent before it is on disk",
        _durable(f.SignalRequested, Durability.LAZY),
        ("warn", "I1"),
        seed=200,
    ),
    Mutant(
        "a change lets a held job go",
        _unseen(_wrap(decide, "change", _released_by_any_change)),
        ("hold", "I1"),
        seed=204,
    ),
    Mutant(
        "a job that has ended is changed",
        _wrap(decide, "change", _changed_after_its_end),
        ("archive",),
        seed=200,
    ),
    Mutant(
        "explain judges nodes by itself",
        _wrap(explain, "consider", _overlooks_holders),
        ("explain",),
        seed=200,
    ),
)

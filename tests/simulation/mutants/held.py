"""Planted bugs of processes that SIGKILL does not end."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from muster.protocol.link.control_channel import TaskReport
from orchestrator.core.engine import decide
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Task
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put, _wrap


def _nothing(*_: Any) -> list[f.Fact]:
    return []


def _takes_all_for_dead(real: Any) -> Any:
    def given_up(task: Task, report: TaskReport) -> list[f.Fact]:
        found: list[f.Fact] = real(task, replace(report, doomed=True))
        return found

    return given_up


MUTANTS = (
    Mutant(
        "a gang waits for a process that computes no more",
        _put(decide, "declare_task_lost", _nothing),
        ("stuck", "I10"),
        seed=1209,
    ),
    Mutant(
        "a task that outlives SIGKILL and may run on is given up",
        _wrap(decide, "declare_task_lost", _takes_all_for_dead),
        ("I3", "I4", "I5"),
        seed=1201,
    ),
    Mutant(
        "a node on which the kernel holds a process gets the next job",
        _put(decide, "drain_for_unkillable", _nothing),
        ("stuck",),
        seed=1203,
    ),
)

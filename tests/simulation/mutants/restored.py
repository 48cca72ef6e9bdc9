"""Bugs of the coordinator after a restore of an older backup."""

from __future__ import annotations

import pytest

from orchestrator.core.model.state import Job
from orchestrator.core.scheduling import scheduler
from tests.simulation.mutants import Mutant


def numbers_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "next_attempt", property(lambda job: job.last_attempt + 1))


def placing_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "is_held", lambda _: False)


def unknown_tasks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "unknown_tasks", lambda _, __: [])


def forgotten_attempts_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "is_restored", lambda _, __: False)


MUTANTS = (
    Mutant(
        "after a restore, numbers of attempts come again",
        numbers_come_again,
        ("numbers",),
        seed=-60,
    ),
    Mutant(
        "after a restore, jobs are placed before all nodes have said hello",
        placing_is_not_held,
        ("restore",),
        seed=-60,
    ),
    Mutant(
        "an attempt that the restored journal lacks does not keep its job from being placed",
        unknown_tasks_do_not_count,
        ("I3",),
        seed=-10,
    ),
    Mutant(
        "an attempt of before a restore is begun again",
        forgotten_attempts_begin_again,
        ("I1", "I3", "gang", "books"),
        seed=-73,
    ),
)

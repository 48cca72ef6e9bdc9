"""Bugs of the coordinator after a restore of an older backup."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.link.control_channel import Hello
from orchestrator.core.engine import decide
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Job, State
from orchestrator.core.nodes import restored
from orchestrator.core.scheduling import scheduler
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.planting import COORDINATOR


def numbers_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "next_attempt", property(lambda job: job.last_attempt + 1))


def placing_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "is_held", lambda _: False)


def unknown_tasks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "unknown_tasks", lambda _, __: [])


def forgotten_attempts_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "is_restored", lambda _, __: False)


def unknown_tasks_end_with_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another boot than the journal's counts as a proof, also for tasks that began in it."""
    real = restored.unknown_tasks_held

    def held(state: State, hello: Hello) -> list[f.Fact]:
        node = state.nodes.get(hello.node)
        if node is not None and node.boot_id != hello.boot_id:
            hello = msgspec.structs.replace(hello, tasks=())
        return real(state, hello)

    monkeypatch.setattr(decide, "unknown_tasks_held", held)


def _reboots_confirm(state: State, received: Any) -> Any:
    """Another boot than the journal's counts as a stop that the node has on disk."""
    if not isinstance(received, s.HelloReceived):
        return received
    hello = received.hello
    node = state.nodes.get(hello.node)
    if node is None or node.boot_id == hello.boot_id:
        return received
    tasks = tuple(msgspec.structs.replace(report, stop_stored=True) for report in hello.tasks)
    told = msgspec.structs.replace(hello, tasks=tasks)
    return msgspec.structs.replace(received, hello=told)


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
        seed=-98,
    ),
    Mutant(
        "after a restore, a reboot since the backup ends the tasks that began after it",
        unknown_tasks_end_with_a_reboot,
        ("I3", "I5"),
        seed=-527,
    ),
    Mutant(
        "after a restore, a member that was rebooted since the backup counts as one that vouches no"
        " more",
        COORDINATOR.inputs(_reboots_confirm),
        ("I3",),
        seed=-596,
    ),
)

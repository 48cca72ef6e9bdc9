"""Bugs of agents that vouch for each other, and of the coordinator that counts on them.

Answers that are replayed have worlds of their own: see `tests.agent.vouching`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.core import vouching
from agent.core.facts import MemberVouched
from agent.core.record import TaskRecord
from agent.core.state import HeldTask, State
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.leases import margin_s, vouches
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.planting import AGENT, COORDINATOR, everywhere

_TWICE = ("I3", "I4", "raised: InvalidTransition")


def believes_old_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskRecord, "after", lambda self, _: self)


def _in_spite_of_stops(real: Any) -> Any:
    def answer(state: State, data: bytes) -> Any:
        taken = [(held, held.stop, held.forgotten) for held in state.tasks.values()]
        for held, _, _ in taken:
            held.stop, held.forgotten = None, False
        answered = real(state, data)
        for held, stop, forgotten in taken:
            held.stop, held.forgotten = stop, forgotten
        return answered

    return answer


def forgets_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = TaskRecord.after

    def after(self: TaskRecord, boot_id: str) -> TaskRecord:
        kept: TaskRecord = real(self, boot_id)
        return TaskRecord(kept.boot_id, kept.cluster, kept.plan, kept.terms)

    monkeypatch.setattr(TaskRecord, "after", after)


def forgets_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted agent renews the lease of its shim for longer than it may."""
    real: Any = HeldTask.lease_until

    def until(self: HeldTask, acknowledged_at: float | None) -> float:
        end: float = real(self, acknowledged_at)
        return end if self.prepare is not None else end + 1000.0

    monkeypatch.setattr(HeldTask, "lease_until", until)


def _votes_last(state: Any, fact: Any) -> None:
    """A vote counts for more than a lease from its begin."""
    if isinstance(fact, MemberVouched):
        held = state.tasks[fact.task]
        if not held.awaited:
            held.voted_at = held.asked_at + 2 * held.lease_s


def _ends_confirm(_: Any, received: Any) -> Any:
    """The end of a task counts as a stop that its node has on disk."""
    report = getattr(received, "report", None)
    if isinstance(report, TaskReport) and report.state is TaskState.CLEANED:
        told = msgspec.structs.replace(report, stop_stored=True)
        return s.ReportReceived(received.session, told)
    return received


MUTANTS = (
    Mutant("a new boot vouches for the gang of an old one", believes_old_boots, _TWICE, seed=-372),
    Mutant(
        "an agent vouches after a stop",
        everywhere(vouching.answer, _in_spite_of_stops),
        _TWICE,
        seed=-485,
    ),
    Mutant("a restarted agent has forgotten a stop", forgets_stops, _TWICE, seed=-156),
    Mutant("a restarted agent has forgotten the lease", forgets_the_lease, _TWICE, seed=-183),
    Mutant("a vote counts for too long", AGENT.state(_votes_last), _TWICE, seed=-194),
    Mutant(
        "there is no margin after a lease",
        everywhere(margin_s, lambda _: lambda _: 0.0),
        _TWICE,
        seed=-197,
    ),
    Mutant(
        "a silent member that others vouch for is over after its last answer",
        everywhere(vouches, lambda _: lambda *__: False),
        _TWICE,
        seed=-194,
    ),
    Mutant(
        "a member that has ended counts as one that vouches no more",
        COORDINATOR.inputs(_ends_confirm),
        _TWICE,
        seed=-179,
    ),
)

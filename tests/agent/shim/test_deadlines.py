"""The deadlines of a task: when its ranks are warned, and when its limit or its lease ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.shim.commands import Malformed, parse
from agent.shim.messages import ShimLease, ShimLimit, ShimPhase, ShimSignal, StoppedBy
from agent.shim.programs import deadlines
from agent.shim.programs.deadlines import Lease, TimeLimit
from agent.shim.status import Status

BEGAN = 1000.0


class Program:
    """A program under a clock of its own; notes its warnings and its stop."""

    def __init__(self) -> None:
        self.status = Status("1.1.0", "/logs")
        self.status.phase = ShimPhase.PREPARED
        self.now = BEGAN
        self.happened: list[tuple[float, str]] = []
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        parts: Any = self, self.status, self, self._stop
        self.limit = TimeLimit(*parts)

    def at(self, name: str, deadline: float, action: Callable[[], None]) -> None:
        self._timers[name] = deadline, action

    def cancel(self, name: str) -> None:
        self._timers.pop(name, None)

    def give(self, command: ShimSignal) -> None:
        self._note(f"{command.signal} {command.number}")

    def over(self) -> None:
        """The signals have timers of their own."""

    def _stop(self, why: StoppedBy) -> None:
        self._note(why)

    def _note(self, what: str) -> None:
        self.happened.append((self.now - BEGAN, what))

    def start(self) -> None:
        self.status.phase, self.status.started_at = ShimPhase.RUNNING, self.now
        self.limit.follow()

    def change(self, number: int, limit_s: float | None, before_s: float = 30.0) -> None:
        warn_s = None if limit_s is None else max(0.0, limit_s - before_s)
        warns = {"warn_s": warn_s, "warn_signal": "SIGUSR1"}
        command = parse({"cmd": "limit", "number": number, "limit_s": limit_s, **warns})
        assert isinstance(command, ShimLimit)
        self.limit.change(command)

    def run(self, until_s: float) -> None:
        """Fire the timers up to then, each at its time and of equals the first one first."""
        while due := [it for it in self._timers.items() if it[1][0] <= BEGAN + until_s]:
            name, (deadline, action) = min(due, key=lambda it: it[1][0])
            self.now = max(self.now, deadline)
            del self._timers[name]
            action()
        self.now = max(self.now, BEGAN + until_s)


@pytest.fixture
def program() -> Program:
    program = Program()
    program.change(1, 100.0)
    return program


def test_it_counts_from_the_start_of_the_program(program: Program) -> None:
    program.run(500.0)
    program.start()
    program.run(500 + 99.0)
    assert program.happened == [(570.0, "SIGUSR1 1")]
    assert program.status.warned_s == 70.0
    program.run(500 + 100.0)
    assert program.happened[1:] == [(600.0, "limit")]


def test_a_raised_limit_warns_again_and_a_repeated_one_does_not(program: Program) -> None:
    program.start()
    program.run(75.0)
    program.change(1, 100.0)
    program.change(2, 200.0)
    program.change(2, 200.0)
    program.run(300.0)
    assert program.happened == [(70.0, "SIGUSR1 1"), (170.0, "SIGUSR1 2"), (200.0, "limit")]


def test_a_lowered_limit_warns_only_ranks_that_were_not_warned(program: Program) -> None:
    program.start()
    program.run(75.0)
    program.change(2, 90.0)
    program.run(300.0)
    assert program.happened == [(70.0, "SIGUSR1 1"), (90.0, "limit")]
    early = Program()
    early.change(1, 100.0)
    early.start()
    early.run(50.0)
    early.change(2, 60.0)
    early.run(300.0)
    assert early.happened == [(50.0, "SIGUSR1 1"), (60.0, "limit")]


def test_a_limit_that_is_removed_ends_nothing_and_an_older_one_changes_nothing(
    program: Program,
) -> None:
    program.start()
    program.change(3, None)
    program.change(2, 50.0)
    program.run(300.0)
    assert not program.happened


def test_a_machine_that_slept_beyond_both_warns_first(program: Program) -> None:
    program.start()
    program.now = BEGAN + 200.0
    program.run(200.0)
    assert program.happened == [(200.0, "SIGUSR1 1"), (200.0, "limit")]


@pytest.mark.parametrize("phase", [ShimPhase.STOPPING, ShimPhase.EXITED])
def test_a_task_that_ends_already_is_neither_warned_nor_stopped(
    program: Program, phase: ShimPhase
) -> None:
    program.start()
    program.status.phase = phase
    program.run(300.0)
    program.change(2, 10.0)
    program.run(400.0)
    assert not program.happened


@pytest.mark.parametrize("frozen_s", [0.0, 250.0, 1000.0])
def test_a_lease_ends_when_it_says_however_late_the_shim_reads_it(
    program: Program, monkeypatch: pytest.MonkeyPatch, frozen_s: float
) -> None:
    loop: Any = program
    lease = Lease(loop, lambda _: program.happened.append((program.now - BEGAN, "lease")))
    program.now += frozen_s
    monkeypatch.setattr(deadlines, "now", lambda: program.now)
    renewal = parse({"cmd": "lease", "ttl_s": 300.0, "until": BEGAN + 300.0})
    assert isinstance(renewal, ShimLease)
    lease.renew(renewal)
    program.run(2000.0)
    assert program.happened == [(max(300.0, frozen_s), "lease")]


def test_a_lease_of_an_older_agent_begins_when_the_shim_reads_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = program
    lease = Lease(loop, lambda _: program.happened.append((program.now - BEGAN, "lease")))
    monkeypatch.setattr(deadlines, "now", lambda: program.now)
    lease.renew(ShimLease(300.0))
    program.run(2000.0)
    assert program.happened == [(300.0, "lease")]


def test_a_limit_has_a_number() -> None:
    with pytest.raises(Malformed, match="number"):
        parse({"cmd": "limit", "limit_s": 1.0})

"""Ranks that a signal is for: those that run, or also those that begin later."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from agent.shim.commands import Malformed, parse
from agent.shim.messages import ShimExit, ShimPhase, ShimRank, ShimSignal
from agent.shim.programs.rank_signals import RankSignals
from agent.shim.programs.ranks import Ranks
from agent.shim.status import Status


class Node:
    """Notes who is signalled; its processes are all this one, which heeds SIGUSR1."""

    def __init__(self) -> None:
        self.status = Status("1.1.0", "/logs")
        self.status.phase = ShimPhase.RUNNING
        self.ranks = Ranks(self.status, None)  # type: ignore[arg-type]
        self.given: list[tuple[int, int]] = []
        self.delivered: list[int] = []
        told: Any = self, self, self.status, self.ranks, lambda: None, self.delivered.append
        self.warnings = RankSignals(*told)

    def signal(self, pids: list[int], number: int) -> list[int]:
        self.given += [(pid, number) for pid in pids]
        return pids

    def at(self, *_: Any) -> None:
        """The loop's timer; the test looks again by itself."""

    def begin(self, rank: int, pid: int) -> None:
        known = self.ranks.by_number[rank] = ShimRank(rank, rank, "", "")
        known.pid = pid

    def give(self, number: int, **more: Any) -> None:
        command = parse({"cmd": "signal", "signal": "SIGUSR1", "number": number, **more})
        assert isinstance(command, ShimSignal)
        self.warnings.give(command)


@pytest.fixture
def node() -> Iterator[Node]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    yield Node()
    signal.signal(signal.SIGUSR1, before)


def test_a_warning_is_for_ranks_that_begin_later_too(node: Node) -> None:
    node.begin(0, 900)
    node.give(1)
    node.begin(1, os.getpid())
    node.warnings.look()
    node.warnings.look()
    assert node.given == [(900, 10), (os.getpid(), 10)]


def test_another_signal_is_for_those_that_there_are(node: Node) -> None:
    node.begin(0, 900)
    node.give(1, late=False)
    node.begin(1, os.getpid())
    node.warnings.look()
    assert node.given == [(900, 10)]
    assert node.delivered == [1]


def test_before_any_rank_has_begun_it_waits_for_the_first_of_them(node: Node) -> None:
    node.give(1, late=False)
    node.begin(0, os.getpid())
    node.warnings.look()
    node.begin(0, os.getpid())  # the next round
    node.warnings.look()
    assert node.given == [(os.getpid(), 10)]


def test_a_warning_outlives_the_signals_after_it(node: Node) -> None:
    node.begin(0, 900)
    node.give(1)
    node.give(2, late=False)
    node.begin(1, os.getpid())
    node.warnings.look()
    assert node.given == [(900, 10), (900, 10), (os.getpid(), 10)]
    assert node.delivered == [1, 2, 1]


def test_some_ranks_and_each_number_once(node: Node) -> None:
    for rank in range(3):
        node.begin(rank, 900 + rank)
    node.ranks.by_number[2].exit = ShimExit(0)
    node.give(2, ranks=[1, 2], late=False)
    node.give(2, late=False)
    node.give(1, late=False)
    assert node.given == [(901, 10)]


@pytest.mark.parametrize("ranks", ["all", [1, "2"], {"1": 2}])
def test_ranks_are_numbers(ranks: Any) -> None:
    with pytest.raises(Malformed, match="ranks"):
        parse({"cmd": "signal", "signal": "USR1", "number": 1, "ranks": ranks})

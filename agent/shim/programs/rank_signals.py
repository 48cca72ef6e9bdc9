"""Signals that do not end the ranks (warnings): each rank gets one once, and none after
the stop.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.shim.commands import signal_number
from agent.shim.messages import ShimPhase, ShimRank, ShimSignal
from agent.shim.programs.ranks import Ranks
from agent.shim.status import Status
from agent.shim.system.event_loop import Loop, now
from agent.shim.system.process_tree import ProcessTree
from agent.shim.system.syscalls import heeds

LOOK_S = 0.25


class RankSignals:
    """Signals to the ranks of one task, numbered from 1. Two such sequences have different names.

    Ranks that begin after a warning (`late`) get it too, once each. Other signals are for the ranks
    that exist.
    """

    def __init__(
        self,
        loop: Loop,
        tree: ProcessTree,
        status: Status,
        ranks: Ranks,
        group: Callable[[], list[int] | None],
        delivered: Callable[[int], None],
        name: str = "signal",
    ) -> None:
        """`group` returns the processes of a program that has no ranks. `delivered` gets the number
        of each signal that reached a process.
        """
        self._loop = loop
        self._tree = tree
        self._status = status
        self._ranks = ranks
        self._group = group
        self._delivered = delivered
        self._timer = f"{name}-late"
        self._given = 0
        self._last: ShimSignal | None = None
        # Number of the last warning that each process got.
        self._warned: dict[int | None, int] = {}

    def give(self, command: ShimSignal) -> None:
        """Signal the existing ranks, or the processes of a program that has no ranks."""
        if self._status.phase is not ShimPhase.RUNNING or command.number <= self._given:
            return
        self._given = command.number
        group = self._group()
        if group is not None:
            self._note(command, self._tree.signal(group, signal_number(command.signal)))
            return
        begun = any(rank.alive for rank in self._ranks.by_number.values())
        if command.late or not (begun or self._last):
            # Before the first rank has started, keep the signal for the ranks that are about to
            # start.
            self._last = command
        self._to(command, self._waiting(command))
        self.look()

    def look(self) -> None:
        """Signal the ranks that have begun since and by now handle the signal.

        A process that is just starting would die of it.
        """
        command = self._last
        if command is None or self._status.phase is not ShimPhase.RUNNING:
            return
        ready = [
            rank
            for rank in self._waiting(command)
            if heeds(rank.pid or 0, signal_number(command.signal))
        ]
        self._to(command, ready)
        if self._waiting(command):
            self._loop.at(self._timer, now() + LOOK_S, self.look)
        elif ready and not command.late:
            self._last = None

    def poll_soon(self) -> None:
        """Schedule `look` once for this turn, because a launcher may report many ranks in one."""
        self._loop.at(self._timer, now(), self.look)

    def over(self) -> None:
        self._loop.cancel(self._timer)

    def _waiting(self, command: ShimSignal) -> list[ShimRank]:
        if self._ranks.signalled:
            return []
        ranks = self._ranks.by_number.values()
        return [
            rank
            for rank in ranks
            if rank.alive
            and command.for_rank(rank.rank)
            and self._warned.get(rank.pid, 0) < command.number
        ]

    def _to(self, command: ShimSignal, ranks: list[ShimRank]) -> None:
        pids = self._tree.signal(
            [rank.pid for rank in ranks if rank.pid], signal_number(command.signal)
        )
        for rank in ranks:
            if rank.pid in pids and command is self._last:
                self._warned[rank.pid] = command.number
        self._note(command, pids)

    def _note(self, command: ShimSignal, pids: list[int]) -> None:
        if pids:
            self._delivered(command.number)

"""A signal that warns the ranks and ends nothing: to each once, and never after the stop."""

from __future__ import annotations

from collections.abc import Callable

from agent.shim.commands import Signal
from agent.shim.linux import heeds
from agent.shim.loop import Loop, now
from agent.shim.ranks import Ranks
from agent.shim.status import Phase, Rank, Status
from agent.shim.tree import Tree

LOOK_S = 0.25
_TIMER = "warning"


class Warnings:
    """Those of one task; the last counts. Ranks that begin after it came have it too, once each."""

    def __init__(
        self, loop: Loop, tree: Tree, status: Status, ranks: Ranks, changed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._tree = tree
        self._status = status
        self._ranks = ranks
        self._changed = changed
        self._last: Signal | None = None

    def give(self, command: Signal, group: list[int] | None) -> None:
        """Give it to the ranks that are there, or to the `group` of a program that has none."""
        if self._status.phase is not Phase.RUNNING:
            return
        if self._last is not None and command.number <= self._last.number:
            return
        self._last = command
        if group is None:
            self._to(command, self._waiting(command))
            self.look()
        elif self._tree.signal(group, command.signal):
            self._note(command)

    def look(self) -> None:
        """Give it to the ranks that have begun since and by now heed it: a process that is just
        beginning would die of it.
        """
        command = self._last
        if command is None or self._status.phase is not Phase.RUNNING:
            return
        ready = [rank for rank in self._waiting(command) if heeds(rank.pid or 0, command.signal)]
        self._to(command, ready)
        if self._waiting(command):
            self._loop.at(_TIMER, now() + LOOK_S, self.look)

    def over(self) -> None:
        self._loop.cancel(_TIMER)

    def _waiting(self, command: Signal) -> list[Rank]:
        if self._ranks.signalled:
            return []
        ranks = self._status.ranks.values()
        return [rank for rank in ranks if rank.alive and rank.warned < command.number]

    def _to(self, command: Signal, ranks: list[Rank]) -> None:
        pids = self._tree.signal([rank.pid for rank in ranks if rank.pid], command.signal)
        for rank in ranks:
            if rank.pid in pids:
                rank.warned = command.number
        if pids:
            self._note(command)

    def _note(self, command: Signal) -> None:
        self._status.signalled = command.number
        self._changed()

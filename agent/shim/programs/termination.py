"""End a task: signal, grace, kill, until the kernel reports that no process of it is left."""

from __future__ import annotations

import signal
from collections.abc import Callable

from agent.shim.system.event_loop import Loop, now
from agent.shim.system.process_tree import ProcessTree

# Leftovers of a program that ended by itself: time to flush, no more.
LEFTOVER_GRACE_S = 2.0
# Once its ranks are gone, torchrun only has to report it.
LAUNCHER_GRACE_S = 3.0
# Interval between two rounds of SIGKILL, and between two checks of a cgroup whose last process is
# not our child.
ROUND_S = 0.05
# The interval once the kernel has held a process for long, which may last for days.
STUCK_ROUND_S = 1.0
_DEADLINE = "ending"
_ROUND = "kill-round"


class Termination:
    """The end of one task. Its deadline only ever gets earlier: a later, longer grace changes
    nothing.
    """

    def __init__(
        self,
        loop: Loop,
        tree: ProcessTree,
        unkillable_s: float,
        check: Callable[[], None],
        stuck: Callable[[list[int], bool], None],
    ) -> None:
        self._loop = loop
        self._tree = tree
        self._unkillable_s = unkillable_s
        self._check = check
        self._stuck = stuck
        self._killing_since: float | None = None

    @property
    def killing(self) -> bool:
        return self._killing_since is not None

    def signal(self, pids: list[int], number: int) -> None:
        """Send the first signal, and SIGCONT, without which a stopped process would not see it."""
        signalled = self._tree.signal(pids, number)
        if number != signal.SIGCONT:
            self._tree.signal(signalled, signal.SIGCONT)

    def signal_all(self, number: int) -> None:
        self._tree.signal(list(self._tree.members()), number)

    def within(self, grace_s: float, kill: Callable[[], None]) -> None:
        """Call `kill` after `grace_s`, or at an earlier deadline that was set before."""
        deadline = now() + grace_s
        pending = self._loop.pending(_DEADLINE)
        if not self.killing and (pending is None or deadline < pending):
            self._loop.at(_DEADLINE, deadline, kill)
        self._watch()

    def kill(self) -> None:
        """SIGKILL, repeatedly, until the tree is empty."""
        if self.killing:
            return
        self._killing_since = now()
        self._loop.cancel(_DEADLINE)
        self._round()

    def over(self) -> None:
        """Cancel all timers: the tree is empty."""
        self._loop.cancel(_DEADLINE)
        self._loop.cancel(_ROUND)

    def _round(self) -> None:
        survivors = self._tree.kill()
        if self._is_stuck():
            self._stuck(survivors, self._tree.doomed())
        self._watch()

    def _watch(self) -> None:
        """Check again soon. The check may find the tree empty, and then this timer is cancelled."""

        def look() -> None:
            self._loop.at(_ROUND, now() + self._round_s(), look)
            if self.killing:
                self._loop.cancel(_ROUND)
                self._round()
            self._check()

        self._loop.at(_ROUND, now() + self._round_s(), look)

    def _round_s(self) -> float:
        return STUCK_ROUND_S if self._is_stuck() else ROUND_S

    def _is_stuck(self) -> bool:
        since = self._killing_since
        return since is not None and now() - since >= self._unkillable_s

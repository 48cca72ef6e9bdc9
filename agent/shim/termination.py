"""How a task ends: signal, grace, kill, until the kernel says that nothing of it is left."""

from __future__ import annotations

import signal
from collections.abc import Callable

from agent.shim.event_loop import Loop, now
from agent.shim.process_tree import Tree

# What a program leaves behind when it ends by itself: time to flush, no more.
LEFTOVER_GRACE_S = 2.0
# torchrun has nothing to do once its ranks are gone, but to say so.
LAUNCHER_GRACE_S = 3.0
# Between two rounds of SIGKILL, and between two looks at a cgroup whose last process is not our
# child.
ROUND_S = 0.05
# The same once the kernel has held one for long: that may last for days.
STUCK_ROUND_S = 1.0
_DEADLINE = "ending"
_ROUND = "kill-round"


class Termination:
    """The ladder of one task. It only ever gets shorter: a later, longer grace changes nothing."""

    def __init__(
        self,
        loop: Loop,
        tree: Tree,
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
        """The ladder's first step. A stopped process would not see its signal."""
        signalled = self._tree.signal(pids, number)
        if number != signal.SIGCONT:
            self._tree.signal(signalled, signal.SIGCONT)

    def signal_all(self, number: int) -> None:
        self._tree.signal(list(self._tree.members()), number)

    def within(self, grace_s: float, kill: Callable[[], None]) -> None:
        """Call `kill` when `grace_s` are over, or sooner where that was said before."""
        deadline = now() + grace_s
        pending = self._loop.pending(_DEADLINE)
        if not self.killing and (pending is None or deadline < pending):
            self._loop.at(_DEADLINE, deadline, kill)
        self._watch()

    def kill(self) -> None:
        """SIGKILL, again and again until the tree is empty."""
        if self.killing:
            return
        self._killing_since = now()
        self._loop.cancel(_DEADLINE)
        self._round()

    def over(self) -> None:
        """The tree is empty: no timer is left."""
        self._loop.cancel(_DEADLINE)
        self._loop.cancel(_ROUND)

    def _round(self) -> None:
        survivors = self._tree.kill()
        if self._is_stuck():
            self._stuck(survivors, self._tree.doomed())
        self._watch()

    def _watch(self) -> None:
        """Look again soon. The check may find the tree empty, and then this timer is cancelled."""

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

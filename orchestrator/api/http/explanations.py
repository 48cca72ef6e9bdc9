"""Explanations in steps, between which the coordinator reads its messages.

One is made at a time for all users, so that the loop never has steps of two between two messages.
Users take turns.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from muster.http.explanation import Explanation
from orchestrator.api.http.problems import ApiError
from orchestrator.core.views.explain import Steps, finished
from orchestrator.shell.request_turns import UserTurns

WAITING_MAX: Final = 8
"""Number of explanations for which one user may wait, besides the one that is made."""
BEGINNINGS: Final = 4
"""Number of times that an explanation begins. The last one is made without pauses."""

Begin = Callable[[], Awaitable[Steps[Explanation]]]
"""Begins an explanation of the present state."""


class Changing(Protocol):
    """The owner of the state. `revision` changes with all that explanations depend on."""

    @property
    def revision(self) -> int: ...

    async def yield_to_scheduling(self) -> None: ...


class Explanations:
    """The explanations that users have asked for."""

    def __init__(self, owner: Changing) -> None:
        self._owner = owner
        self._turns = UserTurns()
        self._is_busy = False

    async def make(self, user: str, begin: Begin) -> Explanation:
        """Return the explanation that `begin` begins. If the state changes meanwhile, it begins
        again. Raises ApiError (429), and what `begin` raises.
        """
        await self._take_turn(user)
        try:
            for _ in range(BEGINNINGS - 1):
                steps = await begin()
                revision = self._owner.revision
                while self._owner.revision == revision:
                    try:
                        next(steps)
                    except StopIteration as done:
                        found: Explanation = done.value
                        return found
                    await asyncio.sleep(0)
                    await self._owner.yield_to_scheduling()
            return finished(await begin())
        finally:
            self._is_busy = self._turns.wake_next()

    async def _take_turn(self, user: str) -> None:
        if self._turns.waiting(user) >= WAITING_MAX:
            raise ApiError(
                429,
                "too_many_explanations",
                f"{user} waits for {WAITING_MAX} explanations already",
                "wait for their answers, then ask again",
                headers={"Retry-After": "1"},
            )
        if not self._is_busy:
            self._is_busy = True
            return
        turn = self._turns.add(user)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._is_busy = self._turns.wake_next()
            raise

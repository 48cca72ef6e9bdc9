"""Inbox of the owner of the agent's state: one queue of all inputs, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Never

from agent.core.inputs import Input

# Far more than remains after a turn. Producers that can wait do so above it.
_CROWDED: Final = 1000
# After this many inputs, the loop runs other tasks before the owner continues.
_BATCH: Final = 32


class InputQueue:
    """Inputs in the order in which they were posted; one reader, the owner.

    The owner is called at once, and not woken as a task, because on an idle node every turn of the
    loop costs.
    """

    def __init__(self) -> None:
        self._items: deque[Input | asyncio.Event] = deque()
        self._hear: Callable[[Input], None] | None = None
        self._before: Callable[[], None] = lambda: None
        self._failed: asyncio.Future[Never] | None = None
        self._busy = False

    async def serve(self, hear: Callable[[Input], None], before: Callable[[], None]) -> Never:
        """Run the owner: call `hear` for each input, until cancelled. Call `before` first whenever
        there is any, and after `wake`. Their errors are raised, and then no more inputs are
        handled.
        """
        self._failed = asyncio.get_running_loop().create_future()
        self._hear, self._before = hear, before
        try:
            self._drain()
            await self._failed
        finally:
            self._hear = None
        raise AssertionError("unreachable")

    def post(self, received: Input) -> None:
        """Post an input; never waits and never loses one. The owner may have handled it on
        return.
        """
        self._items.append(received)
        self._drain()

    def wake(self) -> None:
        """Call the owner's `before` although nothing was posted."""
        self._drain()

    async def settled(self) -> None:
        """Wait until the owner has handled everything posted so far."""
        mark = asyncio.Event()
        self._items.append(mark)
        self._drain()
        await mark.wait()

    async def room(self) -> None:
        """Wait if the owner is far behind: a flooding peer is slowed down, not buffered."""
        if len(self._items) > _CROWDED:
            await self.settled()

    def _drain(self) -> None:
        if self._busy or self._hear is None:
            # The owner handles the inputs that it causes itself next.
            return
        self._busy = True
        try:
            self._before()
            for _ in range(_BATCH):
                if not self._items:
                    return
                item = self._items.popleft()
                if isinstance(item, asyncio.Event):
                    # Everything posted before this mark has been handled.
                    item.set()
                else:
                    self._hear(item)
            if self._items:
                asyncio.get_running_loop().call_soon(self._drain)
        except Exception as error:  # noqa: BLE001 - raised by `serve`
            self._hear = None
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)
        finally:
            self._busy = False

"""The one queue in front of the owner of the agent's state: all that happens, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Never

from agent.core.inputs import Input

# Far more than a turn ever leaves behind; whoever can wait does so above it.
_CROWDED: Final = 1000
# Then others have the loop, before the owner goes on.
_BATCH: Final = 32


class Inbox:
    """Inputs in the order in which they were posted; one reader, the owner.

    The owner hears of what is posted at once, as a call and not as a task that wakes: on a node at
    rest every turn of the loop would be paid for.
    """

    def __init__(self) -> None:
        self._items: deque[Input | asyncio.Event] = deque()
        self._hear: Callable[[Input], None] | None = None
        self._before: Callable[[], None] = lambda: None
        self._failed: asyncio.Future[Never] | None = None
        self._busy = False

    async def serve(self, hear: Callable[[Input], None], before: Callable[[], None]) -> Never:
        """For the owner: `hear` each input, until cancelled; `before` comes first whenever there
        is any, and after `wake`. Raises what these raise, and hears nothing more then.
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
        """Never waits and never loses: what happened, happened. Of what the owner does about it,
        some has been done on return."""
        self._items.append(received)
        self._drain()

    def wake(self) -> None:
        """Call the owner's `before` although nothing was posted."""
        self._drain()

    async def settled(self) -> None:
        """Wait until everything posted so far has been answered by the owner."""
        mark = asyncio.Event()
        self._items.append(mark)
        self._drain()
        await mark.wait()

    async def room(self) -> None:
        """Wait where the owner is far behind: a peer that floods us is slowed, not stored."""
        if len(self._items) > _CROWDED:
            await self.settled()

    def _drain(self) -> None:
        if self._busy or self._hear is None:
            # What the owner itself causes, it hears next.
            return
        self._busy = True
        try:
            self._before()
            for _ in range(_BATCH):
                if not self._items:
                    return
                item = self._items.popleft()
                if isinstance(item, asyncio.Event):
                    # All that was posted before this mark has been answered by now.
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

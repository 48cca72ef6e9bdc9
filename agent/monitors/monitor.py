"""The parts that monitors share: the periodic loop, the memory of what was posted, and the thread
for calls that may block."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, Never, TypeVar

from agent.core.inputs import Input

_T = TypeVar("_T")


class Monitor(abc.ABC):
    """Looks at once, then every `period_s` seconds, and soon after each `stir`. Without `at_once`,
    somebody else has just looked."""

    def __init__(
        self, post: Callable[[Input], None], period_s: float, *, at_once: bool = True
    ) -> None:
        self._post = post
        self._period_s = period_s
        self._posted: dict[object, object] = {}
        self._stirred = asyncio.Event()
        if at_once:
            self._stirred.set()

    def stir(self) -> None:
        """Request a look soon, because something has happened."""
        self._stirred.set()

    async def run(self) -> Never:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._stirred.wait()
            self._stirred.clear()
            await self.look()

    @abc.abstractmethod
    async def look(self) -> object:
        """Look once, and post what has changed."""

    def _is_news(self, subject: object, value: object, before: object = ()) -> bool:
        """Whether `value` differs from the last one of this subject; `before` precedes the first
        one. Remembers it."""
        if self._posted.get(subject, before) == value:
            return False
        self._posted[subject] = value
        return True

    def _forget(self, subject: object) -> None:
        self._posted.pop(subject, None)


class BlockingCall(Generic[_T]):
    """A function that may block for ever, in a thread that no other work waits for.

    There is only one call at a time: while one runs, other callers wait for its result. The thread
    does not keep the agent from exiting.
    """

    def __init__(self, function: Callable[[], _T], name: str) -> None:
        self._function = function
        self._name = name
        self._running: asyncio.Future[_T] | None = None

    async def result(self, patience_s: float | None = None) -> _T:
        """Call the function. Raises its error, or TimeoutError after `patience_s`; the call then
        goes on."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_future()
            threading.Thread(
                target=self._call, args=(self._running,), name=self._name, daemon=True
            ).start()
        async with asyncio.timeout(patience_s):
            return await asyncio.shield(self._running)

    def _call(self, running: asyncio.Future[_T]) -> None:
        """The body of the thread."""
        try:
            then = partial(running.set_result, self._function())
        except Exception as error:  # noqa: BLE001  raised where the result is awaited
            then = partial(running.set_exception, error)
        # If the event loop is closed, the agent is exiting.
        with contextlib.suppress(RuntimeError):
            running.get_loop().call_soon_threadsafe(then)

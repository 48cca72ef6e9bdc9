"""Work in a thread for which nobody waits for long, not even the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

import structlog

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = structlog.get_logger("muster.daemon.abandoned_thread")


class BlockingCall(Generic[_T]):
    """A function that may block for ever, in a thread that no other work waits for.

    There is only one call at a time: while one runs, other callers wait for its result. A process
    that exits does not wait for the thread.
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
        # If the event loop is closed, the process is exiting.
        with contextlib.suppress(RuntimeError):
            running.get_loop().call_soon_threadsafe(then)


async def wait_at_most(
    seconds: float, work: Callable[_P, object], *args: _P.args, **more: _P.kwargs
) -> bool:
    """Run `work` in a thread of its own, and wait for its end, but at most `seconds`. Its error is
    logged.

    Returns False if it still runs: it goes on, and a process that exits does not wait for it.
    """

    def run() -> None:
        try:
            work(*args, **more)
        except Exception:  # noqa: BLE001  nobody may be waiting for it any more
            _log.exception("background_work_failed")

    try:
        await BlockingCall(run, "background").result(seconds)
    except TimeoutError:
        return False
    return True

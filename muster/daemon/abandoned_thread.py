"""Work in a thread for which nobody waits for long, not even the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


async def wait_at_most(
    seconds: float, work: Callable[_P, object], *args: _P.args, **more: _P.kwargs
) -> bool:
    """Run `work` in a thread of its own, and wait for its end, but at most `seconds`.

    Returns False if it still runs: it goes on, and a process that exits does not wait for it.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def run() -> None:
        try:
            work(*args, **more)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="background", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True

"""The parts that monitors share: the periodic loop and the memory of what was posted."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Callable
from typing import Never

from agent.core.inputs import Input


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
        """True if `value` differs from the last one of this subject; `before` precedes the first
        one. Remembers it."""
        if self._posted.get(subject, before) == value:
            return False
        self._posted[subject] = value
        return True

    def _forget(self, subject: object) -> None:
        self._posted.pop(subject, None)

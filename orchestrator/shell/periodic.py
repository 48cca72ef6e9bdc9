"""Periodic work during a wait; none if the wait is short."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Periodic:
    """`with Periodic(every_s, do): await ...` calls `do` on the loop every `every_s`."""

    def __init__(self, every_s: float, do: Callable[[], None]) -> None:
        self._every_s = every_s
        self._do = do
        self._alarm: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._alarm = asyncio.get_running_loop().call_later(self._every_s, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _ring(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self._every_s, self._ring)
        self._do()

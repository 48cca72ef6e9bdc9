"""The loop of a monitor."""

from __future__ import annotations

import asyncio
import math

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.disks import DiskHealth

PATIENCE_S = 180.0


class Numbers(Monitor):
    """Posts what it is given; counts its looks."""

    def __init__(self, *values: int, period_s: float, at_once: bool = True) -> None:
        self.posted: list[Input] = []
        super().__init__(self.posted.append, period_s, at_once=at_once)
        self._values = list(values)
        self.done = asyncio.Event()

    async def look(self) -> None:
        value = self._values.pop(0)
        if self._is_news("number", value, 0):
            self._post(NodeObserved(NodeChanges(disks=(DiskHealth("/d", value),))))
        if not self._values:
            self.done.set()


async def watched(numbers: Numbers) -> list[int]:
    running = asyncio.create_task(numbers.run())
    async with asyncio.timeout(PATIENCE_S):
        await numbers.done.wait()
    running.cancel()
    posts = [one for one in numbers.posted if isinstance(one, NodeObserved)]
    return [disk.free_bytes for one in posts for disk in one.changes.disks or ()]


def test_only_changes_are_posted() -> None:
    async def story() -> list[int]:
        return await watched(Numbers(0, 1, 1, 2, 0, period_s=0.0))

    assert asyncio.run(story()) == [1, 2, 0]


def test_a_stir_brings_a_look_before_the_period_is_over() -> None:
    async def story() -> list[int]:
        numbers = Numbers(5, period_s=math.inf, at_once=False)
        numbers.stir()
        return await watched(numbers)

    assert asyncio.run(story()) == [5]

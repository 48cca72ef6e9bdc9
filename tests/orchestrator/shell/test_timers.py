"""Timers fire once, when they are due and in order, and moving one moves it."""

import asyncio

from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from orchestrator.core.facts.effects import Timer, TimerKind
from orchestrator.shell.timers import Timers


class TestClock:
    """A clock that runs when it is told to."""

    __test__ = False

    def __init__(self) -> None:
        self.mono = 100.0

    def now(self) -> Instant:
        return Instant(self.mono, 0.0)


def timer(job: int) -> Timer:
    return Timer(TimerKind.LIMIT, job=JobId(job))


class Rig:
    def __init__(self) -> None:
        self.clock = TestClock()
        self.fired: list[int] = []
        self.timers = Timers(self.clock, lambda t: self.fired.append(t.job))

    async def at(self, mono: float) -> list[int]:
        """What has fired when the clock shows `mono` and the alarm rings."""
        self.clock.mono = mono
        self.timers._ring()
        return self.fired


async def test_they_fire_in_order_and_once() -> None:
    rig = Rig()
    for job, at in ((1, 103.0), (2, 101.0), (3, 102.0)):
        rig.timers.set(timer(job), at)
    assert await rig.at(100.5) == []
    assert await rig.at(102.0) == [2, 3]
    assert await rig.at(200.0) == [2, 3, 1]
    assert len(rig.timers) == 0


async def test_setting_again_moves() -> None:
    rig = Rig()
    rig.timers.set(timer(1), 101.0)
    rig.timers.set(timer(1), 105.0)
    assert await rig.at(102.0) == []
    rig.timers.set(timer(1), 103.0)
    assert await rig.at(104.0) == [1]
    assert await rig.at(200.0) == [1]


async def test_the_loop_is_woken_for_the_first_that_is_due() -> None:
    rig = Rig()
    done = asyncio.Event()
    timers = Timers(rig.clock, lambda _: done.set())
    timers.set(timer(1), 1e9)
    timers.set(timer(2), rig.clock.mono)
    async with asyncio.timeout(20):
        await done.wait()
    timers.close()


async def test_moving_one_for_ever_does_not_fill_memory() -> None:
    rig = Rig()
    for step in range(10_000):
        rig.timers.set(timer(1), 1000.0 + step)
    assert len(rig.timers._heap) < 200
    rig.timers.close()
    assert await rig.at(1e9) == []

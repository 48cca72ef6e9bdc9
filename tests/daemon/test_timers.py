"""Timers fire once, when they are due and in order, and moving one moves it."""

import asyncio

from muster.daemon.timers import Timers
from muster.protocol.instant import Instant


class TestClock:
    """A clock that a test advances."""

    __test__ = False

    def __init__(self) -> None:
        self.mono = 100.0

    def now(self) -> Instant:
        return Instant(self.mono, 0.0)


class Rig:
    def __init__(self) -> None:
        self.clock = TestClock()
        self.fired: list[int] = []
        self.timers = Timers(self.clock, self.fired.append)

    async def at(self, mono: float) -> list[int]:
        """Return the timers that have fired when the clock shows `mono` and the alarm rings."""
        self.clock.mono = mono
        self.timers._ring()
        return self.fired


async def test_they_fire_in_order_and_once() -> None:
    rig = Rig()
    for job, at in ((1, 103.0), (2, 101.0), (3, 102.0)):
        rig.timers.set(job, at)
    assert await rig.at(100.5) == []
    assert await rig.at(102.0) == [2, 3]
    assert await rig.at(200.0) == [2, 3, 1]
    assert len(rig.timers) == 0


async def test_setting_again_moves() -> None:
    rig = Rig()
    rig.timers.set(1, 101.0)
    rig.timers.set(1, 105.0)
    assert await rig.at(102.0) == []
    rig.timers.set(1, 103.0)
    assert await rig.at(104.0) == [1]
    assert await rig.at(200.0) == [1]


async def test_the_loop_is_woken_for_the_first_that_is_due() -> None:
    rig = Rig()
    done = asyncio.Event()
    timers: Timers[int] = Timers(rig.clock, lambda _: done.set())
    timers.set(1, 1e9)
    timers.set(2, rig.clock.mono)
    async with asyncio.timeout(180):
        await done.wait()
    timers.close()


async def test_moving_one_for_ever_does_not_fill_memory() -> None:
    rig = Rig()
    for step in range(10_000):
        rig.timers.set(1, 1000.0 + step)
    assert len(rig.timers._heap) < 200
    rig.timers.close()
    assert await rig.at(1e9) == []


async def test_an_alarm_that_leads_to_nothing_rings_again() -> None:
    """Such a one rings while the owner of the state is not there to fire the timers."""

    rings, again = 0, asyncio.Event()

    def ring() -> None:
        nonlocal rings
        rings += 1
        if rings == 2:
            timers.fire_due()

    timers: Timers[int] = Timers(TestClock(), lambda _: again.set(), ring)
    timers.set(1, 100.0)
    async with asyncio.timeout(180):
        await again.wait()
    assert (rings, len(timers)) == (2, 0)


async def test_the_clock_is_read_again_soon_since_the_loop_stops_with_a_suspended_machine() -> None:
    rig = Rig()
    rig.timers.set(1, 1e9)
    assert rig.timers._alarm is not None
    assert rig.timers._alarm.when() - asyncio.get_running_loop().time() <= 30.0
    rig.timers.close()

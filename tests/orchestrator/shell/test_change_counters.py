"""Waiting for a change: none is missed, and nobody is left waiting."""

import asyncio

from orchestrator.shell.change_counters import ChangeCounters


async def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    changes = ChangeCounters()
    seen = changes.count("job")
    changes.bump(["job"])
    await changes.wait({"job": seen})
    assert changes.count("job") == seen + 1


async def test_any_of_several_keys_wakes() -> None:
    changes = ChangeCounters()
    waits = [asyncio.create_task(changes.wait({"a": 0, "b": 0})) for _ in range(3)]
    other = asyncio.create_task(changes.wait({"c": 0}))
    await asyncio.sleep(0)
    changes.bump(["b"])
    await asyncio.gather(*waits)
    assert not other.done()
    changes.close()
    await other
    await changes.wait({"c": 0})
    assert changes.closed


async def test_a_waiter_that_gives_up_leaves_nothing_behind() -> None:
    changes = ChangeCounters()
    await changes.wait({"a": 0}, timeout_s=0)
    waiting = asyncio.create_task(changes.wait({"a": 0, "b": 0}))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert changes._waiting == {}


async def test_a_removed_counter_is_not_kept_and_wakes_its_waiters() -> None:
    changes = ChangeCounters()
    changes.bump(["job"])
    waiting = asyncio.create_task(changes.wait({"job": 1}))
    await asyncio.sleep(0)
    changes.drop(["job", "other"])
    await waiting
    assert (changes._counts, changes._waiting) == ({}, {})
    await changes.wait({"job": 1})  # seen before it was dropped

"""Requests run one in each iteration of the loop, so that agents are served in between."""

import asyncio
from itertools import count, pairwise

import pytest

from orchestrator.shell.request_turns import CommitReaders, RequestTurns


class _Iterations:
    """Counts the iterations of the loop."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.now += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def test_one_request_begins_in_each_iteration_of_the_loop() -> None:
    turns, iterations = RequestTurns(), _Iterations()
    began: list[int] = []

    async def request() -> None:
        await turns.take("ann")
        began.append(iterations.now)

    await asyncio.gather(*(request() for _ in range(50)))
    iterations.stop()
    assert all(earlier < later for earlier, later in pairwise(began))


async def test_a_user_with_many_requests_delays_another_by_one() -> None:
    turns = RequestTurns()
    order: list[str] = []

    async def request(user: str) -> None:
        await turns.take(user)
        order.append(user)

    await asyncio.gather(*(request("ann") for _ in range(50)), request("bob"))
    assert order.index("bob") <= 2


async def test_a_request_that_is_cancelled_passes_its_turn_on() -> None:
    turns = RequestTurns()
    tasks = [asyncio.create_task(turns.take("ann")) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await tasks[0]
    await tasks[2]
    await turns.take("bob")
    assert tasks[1].cancelled()


async def test_readers_of_a_commit_run_one_in_each_iteration_of_the_loop() -> None:
    readers, iterations = CommitReaders(), _Iterations()
    read: list[int] = []

    async def reader() -> None:
        await readers.wait()
        read.append(iterations.now)

    tasks = [asyncio.create_task(reader()) for _ in range(10)]
    await asyncio.sleep(0)
    while await readers.wake():
        pass
    await asyncio.gather(*tasks)
    iterations.stop()
    assert all(earlier < later for earlier, later in pairwise(read))


async def test_a_reader_that_comes_while_others_are_woken_waits_for_the_next_step() -> None:
    readers = CommitReaders()
    steps = count(1)
    step = next(steps)
    read: list[tuple[str, int]] = []

    async def reader(name: str) -> None:
        await readers.wait()
        read.append((name, step))
        if name == "first":
            late.append(asyncio.create_task(reader("late")))

    late: list[asyncio.Task[None]] = []
    first = asyncio.create_task(reader("first"))
    await asyncio.sleep(0)
    assert not await readers.wake()
    await first
    await asyncio.sleep(0)
    step = next(steps)
    assert not await readers.wake()
    await late[0]
    assert read == [("first", 1), ("late", 2)]


async def test_readers_fail_with_the_coordinator() -> None:
    readers = CommitReaders()
    waiting = asyncio.create_task(readers.wait())
    await asyncio.sleep(0)
    readers.fail(RuntimeError("stopped"))
    with pytest.raises(RuntimeError, match="stopped"):
        await waiting

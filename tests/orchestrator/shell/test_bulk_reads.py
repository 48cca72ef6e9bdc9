"""Users take turns at the threads for bulk reads, slice by slice."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from orchestrator.shell.bulk_reads import BulkReads


async def test_a_user_with_many_readers_delays_another_by_one_slice() -> None:
    order: list[str] = []
    gate = threading.Event()

    def slice_of(user: str) -> Callable[[], None]:
        return lambda: order.append(user)

    reads = BulkReads(threads=1)
    held = asyncio.create_task(reads.slice("ann", gate.wait))
    await asyncio.sleep(0)
    many = [asyncio.create_task(reads.slice("ann", slice_of("ann"))) for _ in range(20)]
    await asyncio.sleep(0)
    one = asyncio.create_task(reads.slice("bob", slice_of("bob")))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(held, one, *many)
    reads.close()
    assert order.index("bob") <= 1
    assert order.count("ann") == 20


async def test_no_more_slices_run_at_once_than_there_are_threads() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def slice_() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    reads = BulkReads(threads=2)
    await asyncio.gather(*(reads.slice(f"user {n % 7}", slice_) for n in range(100)))
    reads.close()
    assert most <= 2


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "just given its turn"])
def test_a_reader_that_leaves_gives_its_turn_to_the_next(given: bool) -> None:
    async def main() -> None:
        reads = BulkReads(threads=1)
        async with reads.turn("ann"):
            leaves = asyncio.create_task(reads.slice("bob", lambda: None))
            stays = asyncio.create_task(reads.slice("eve", lambda: "read"))
            await asyncio.sleep(0)
            if not given:
                leaves.cancel()
        leaves.cancel()
        async with asyncio.timeout(180):
            assert await stays == "read"
            assert await reads.slice("ann", lambda: "again") == "again"
        assert leaves.cancelled()
        reads.close()

    asyncio.run(main())

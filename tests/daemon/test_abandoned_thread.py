"""Work for which nobody waits longer than said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from muster.daemon.abandoned_thread import BlockingCall, wait_at_most

PATIENCE_S = 180.0


def test_a_short_work_has_ended_and_a_long_one_goes_on() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def long() -> None:
        may_end.wait(300)
        ended.set()

    async def main() -> None:
        seen: list[int] = []
        assert await wait_at_most(60.0, seen.append, 1)
        assert seen == [1]
        assert not await wait_at_most(0.01, long)

    asyncio.run(main())
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(300)


def test_a_process_ends_without_it() -> None:
    code = (
        "import asyncio, threading\n"
        "from muster.daemon.abandoned_thread import wait_at_most\n"
        "asyncio.run(wait_at_most(0.01, threading.Event().wait))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_call_that_blocks_is_not_made_twice() -> None:
    go, calls = threading.Event(), list[int]()

    def block() -> int:
        calls.append(1)
        assert go.wait(PATIENCE_S)
        return len(calls)

    async def story() -> list[int]:
        call = BlockingCall(block, "block")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await call.result(0.01)
        go.set()
        return [await call.result(), await call.result()]

    assert asyncio.run(story()) == [1, 2]


def test_an_error_is_raised_where_the_result_is_awaited() -> None:
    def fail() -> int:
        raise OSError(5, "Input/output error")

    async def story() -> None:
        with pytest.raises(OSError, match="Input/output error"):
            await BlockingCall(fail, "fail").result(PATIENCE_S)

    asyncio.run(story())

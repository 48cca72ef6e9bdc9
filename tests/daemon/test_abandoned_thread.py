"""Work for which nobody waits longer than said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from muster.daemon.abandoned_thread import wait_at_most


def test_a_short_work_has_ended_and_a_long_one_goes_on() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def long() -> None:
        may_end.wait(60)
        ended.set()

    async def main() -> None:
        seen: list[int] = []
        assert await wait_at_most(60.0, seen.append, 1)
        assert seen == [1]
        assert not await wait_at_most(0.01, long)

    asyncio.run(main())
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)


def test_a_process_ends_without_it() -> None:
    code = (
        "import asyncio, threading\n"
        "from muster.daemon.abandoned_thread import wait_at_most\n"
        "asyncio.run(wait_at_most(0.01, threading.Event().wait))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

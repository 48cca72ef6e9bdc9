"""Each task has a name, an owner and a fate."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from muster.daemon.errors import TaskEndedError
from muster.daemon.task_owner import TaskOwner


def run(main: Coroutine[Any, Any, None]) -> None:
    async def within_deadline() -> None:
        async with asyncio.timeout(180):
            await main

    asyncio.run(within_deadline())


async def forever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def fails() -> None:
    raise OSError("disk gone")


async def returns() -> None:
    return


def test_the_owner_alone_keeps_a_task_alive() -> None:
    async def main() -> None:
        async with TaskOwner("test") as owner:
            # The loop holds tasks weakly, and nothing but this one knows what it waits for.
            task = weakref.ref(owner.spawn(forever(), name="work"))
            await asyncio.sleep(0)
            gc.collect()
            kept = task()
            assert kept is not None
            assert kept.get_name() == "test.work"
            assert len(owner) == 1
        assert len(owner) == 0

    run(main())


def test_a_monitor_that_fails_is_run_again() -> None:
    """Unforeseen data costs a monitor its figures, and not the daemon its life."""

    async def main() -> None:
        runs = asyncio.Semaphore(0)

        async def watch() -> NoReturn:
            runs.release()
            raise ValueError("data that nobody foresaw")

        async with TaskOwner("test") as owner:
            owner.spawn_monitor(watch, name="watch", retry_s=0.0)
            for _ in range(3):
                await runs.acquire()

    with capture_logs() as logs:
        run(main())
    assert [line["event"] for line in logs][:2] == ["monitor_failed", "monitor_failed"]
    assert logs[0]["monitor"] == "watch"


def test_close_ends_every_task_and_waits_for_it() -> None:
    async def main() -> None:
        tidied = []

        async def tidy() -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                tidied.append(1)

        owner = TaskOwner("test")
        tasks = [owner.spawn(tidy(), name=f"t{n}") for n in range(3)]
        await asyncio.sleep(0)
        await owner.close()
        assert len(tidied) == 3
        assert all(task.cancelled() for task in tasks)
        await owner.close()

    run(main())


@pytest.mark.parametrize(
    ("body", "why", "cause"),
    [
        (fails, "failed: OSError: disk gone", OSError),
        (returns, "returned", type(None)),
    ],
)
def test_an_eternal_task_that_ends_stops_the_daemon(body: Any, why: str, cause: type) -> None:
    async def main() -> None:
        async with TaskOwner("agent") as owner:
            owner.spawn(forever(), name="other", eternal=True)
            owner.spawn(body(), name="link", eternal=True)
            with pytest.raises(TaskEndedError) as caught:
                await owner.run_until(asyncio.Event())
            assert str(caught.value) == f"task agent.link, which is to run always, {why}"
            assert isinstance(caught.value.__cause__, cause)

    run(main())


def test_an_eternal_task_that_is_cancelled_by_another_stops_the_daemon() -> None:
    async def main() -> None:
        async with TaskOwner("agent") as owner:
            owner.spawn(forever(), name="link", eternal=True).cancel()
            with pytest.raises(TaskEndedError, match="was cancelled"):
                await owner.run_until(asyncio.Event())

    run(main())


def test_an_end_before_anyone_waits_is_not_missed() -> None:
    async def main() -> None:
        async with TaskOwner("agent") as owner:
            task = owner.spawn(fails(), name="link", eternal=True)
            await asyncio.wait([task])
            with pytest.raises(TaskEndedError):
                await owner.run_until(asyncio.Event())

    run(main())


def test_a_stop_ends_the_wait_and_closing_is_no_failure() -> None:
    async def main() -> None:
        stop = asyncio.Event()
        async with TaskOwner("agent") as owner:
            owner.spawn(forever(), name="link", eternal=True)
            asyncio.get_running_loop().call_soon(stop.set)
            await owner.run_until(stop)
        await owner.run_until(stop)

    run(main())


def test_the_wait_itself_can_be_cancelled_and_leaves_nothing() -> None:
    async def main() -> None:
        owner = TaskOwner("agent")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await owner.run_until(asyncio.Event())
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_the_error_of_any_task_is_logged() -> None:
    async def main() -> None:
        async with TaskOwner("agent") as owner:
            await asyncio.wait([owner.spawn(fails(), name="once")])
            await asyncio.sleep(0)

    with capture_logs() as logs:
        run(main())
    (line,) = logs
    assert (line["event"], line["task"]) == ("task_failed", "agent.once")
    assert isinstance(line["exc_info"], OSError)


def test_a_closed_owner_starts_nothing() -> None:
    async def main() -> None:
        owner = TaskOwner("agent")
        await owner.close()
        with pytest.raises(RuntimeError, match="task late was not started"):
            owner.spawn(returns(), name="late")

    run(main())


def test_a_task_that_will_not_stop_is_named_and_left() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        owner = TaskOwner("agent")
        task = owner.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        await owner.close(timeout_s=0.01)
        release.set()
        await task

    with capture_logs() as logs:
        run(main())
    assert [(line["event"], line["task"]) for line in logs] == [
        ("task_not_stopped", "agent.stubborn")
    ]

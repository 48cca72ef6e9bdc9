"""Named asyncio tasks with an owner that ends them and reports their errors.

A bare `asyncio.create_task` may be garbage collected while it runs, and its error may never be
seen. An owner keeps every task, ends all of them together, and logs or raises each error.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Never, Self, TypeVar

import structlog

from muster.daemon.errors import TaskEndedError

_T = TypeVar("_T")
_log = structlog.get_logger("muster.tasks")


class TaskOwner:
    """Keeps tasks from `spawn` to their end, and cancels the remaining ones in `close`.

    Use it as `async with TaskOwner("agent") as owner:` and wait in `owner.run_until(stop)`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._failure: TaskEndedError | None = None
        self._failed = asyncio.Event()

    def spawn(
        self, coro: Coroutine[Any, Any, _T], *, name: str, eternal: bool = False
    ) -> asyncio.Task[_T]:
        """Start a task and keep it.

        An `eternal` task must run as long as the daemon: if it returns or raises, `run_until`
        raises TaskEndedError. The error of any other task is logged, even if another caller awaits
        it. After `close` the coroutine is not started and RuntimeError is raised.
        """
        if self._closed:
            coro.close()
            raise RuntimeError(f"{self.name} is closed: task {name} was not started")
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._eternal_ended if eternal else self._ended)
        return task

    def spawn_monitor(
        self, run: Callable[[], Coroutine[Any, Any, Never]], *, name: str, retry_s: float = 10.0
    ) -> None:
        """Start a task that only observes. If it raises, the error is logged and `run` is called
        again after `retry_s`: unforeseen data costs its figures and not the daemon."""
        self.spawn(self._observe(run, name, retry_s), name=name, eternal=True)

    async def _observe(
        self, run: Callable[[], Coroutine[Any, Any, Never]], name: str, retry_s: float
    ) -> Never:
        while True:
            try:
                await run()
            except Exception:  # noqa: BLE001 -- whatever it is, the node is worth more
                _log.exception("monitor_failed", monitor=name, retry_s=retry_s)
            await asyncio.sleep(retry_s)

    def __len__(self) -> int:
        """Number of running tasks."""
        return len(self._tasks)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set; raises TaskEndedError as soon as an eternal task ends."""
        waits = [
            asyncio.get_running_loop().create_task(event.wait(), name=f"{self.name}.{name}")
            for name, event in (("stop", stop), ("failed", self._failed))
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def close(self, *, timeout_s: float = 10.0) -> None:
        """Cancel every task and wait for all of them. No new ones can be started afterwards.

        A task that has not ended after `timeout_s` is logged and abandoned: one that swallows its
        cancellation must not keep a daemon from stopping. Safe to call twice.
        """
        self._closed = True
        mine = self._tasks - {asyncio.current_task()}
        for task in mine:
            task.cancel()
        if not mine:
            return
        _, stuck = await asyncio.wait(mine, timeout=timeout_s)
        for task in stuck:
            _log.error("task_not_stopped", task=task.get_name(), waited_s=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("task_failed", task=task.get_name(), exc_info=error)

    def _eternal_ended(self, task: asyncio.Task[Any]) -> None:
        if self._closed:
            self._ended(task)
            return
        self._tasks.discard(task)
        cause: BaseException | None
        if task.cancelled():
            why, cause = "was cancelled", None
        elif (cause := task.exception()) is not None:
            why = f"failed: {type(cause).__name__}: {cause}"
        else:
            why = "returned"
        if self._failure is None:
            self._failure = TaskEndedError(f"task {task.get_name()}, which is to run always, {why}")
            self._failure.__cause__ = cause
        self._failed.set()

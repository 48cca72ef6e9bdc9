"""The thread that writes logs, so that a disk that hangs holds up no event loop."""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

# A disk that has not finished one operation for so long does not answer.
UNANSWERED_S: Final = 5.0
_TURN_S: Final = 0.01  # time for results on the loop, before others get their turn

_T = TypeVar("_T")
Done = Callable[[BaseException | None], None]


class _Work(NamedTuple):
    run: Callable[[], object]
    done: Done | None


class Writer:
    """Runs work in order, one at a time, in a thread that starts with the first work.

    Messages of work to the loop go through `post`, and arrive there before its `done`.
    """

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._results: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False  # the loop will look at `_results`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._here = threading.local()
        self._began: float | None = None  # monotonic seconds

    @property
    def unanswered_s(self) -> float:
        """Return for how long the work in progress has been running, or 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def is_stalled(self) -> bool:
        return self.unanswered_s >= UNANSWERED_S

    def submit(self, run: Callable[[], object], done: Done | None = None) -> None:
        """Run work after all that was submitted before. Then call `done` on the loop, with the
        error or None. Without `done`, an error is raised in the loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._woken = loop, False
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run,
                name="log-writer",
                daemon=True,  # so that the process ends even if the disk never answers
            )
            self._thread.start()
        self._works.put(_Work(run, done))

    def close(self) -> None:
        """End the thread after all that was submitted."""
        if self._thread is not None:
            self._works.put(None)
            self._thread = None

    async def call(self, run: Callable[[], _T]) -> _T:
        """Run work and return its result. It runs even if the caller is cancelled."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        results: list[_T] = []

        def done(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(results[0])
            else:
                future.set_exception(error)

        self.submit(lambda: results.append(run()), done)
        return await future

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back on the loop: soon if this is the thread, else now."""
        if getattr(self._here, "is_writer", False):
            self._results.append((callback, args))
        else:
            callback(*args)

    def _run(self) -> None:
        self._here.is_writer = True
        while (work := self._works.get()) is not None:
            self._began = time.monotonic()
            error: BaseException | None = None
            try:
                work.run()
            except Exception as raised:  # noqa: BLE001 - it is handed to `done`
                error = raised
            self._began = None
            self._results.append((work.done or _raise, (error,)))
            if not self._woken:
                self._woken = True
                self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._woken = False  # the loop is closed, and nobody waits any more

    def _deliver(self) -> None:
        assert self._loop is not None
        until = self._loop.time() + _TURN_S
        self._woken = False
        try:
            while self._results and self._loop.time() < until:
                callback, args = self._results.popleft()
                callback(*args)
        finally:
            if self._results:
                self._woken = True
                self._loop.call_soon(self._deliver)


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error

"""The jobs whose log streams are loaded. Idle ones are evicted."""

import asyncio
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from muster.protocol.ids import JobId
from orchestrator.shell.logs.job_streams import JobStreams
from orchestrator.shell.logs.stream_file import LogStoreError, StreamFile

JOBS_KEPT: Final = 1024
_THREADS: Final = 2


class JobCache:
    """Loads each job at most once at a time.

    A job is evicted only by the thread that writes, because that thread may be about to change it.
    """

    def __init__(self, root: Path, in_use: Callable[[StreamFile], bool]) -> None:
        self._root = root
        self._in_use = in_use
        self._guard = threading.Condition()  # of what follows; never held while a disk is used
        self._jobs: OrderedDict[JobId, JobStreams] = OrderedDict()
        self._loading: dict[JobId, asyncio.Future[JobStreams]] = {}
        self._claimed: set[JobId] = set()  # being loaded by `job`
        # A disk that hangs keeps these threads, and none that others use.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="log-load")

    def known(self, name: JobId) -> JobStreams | None:
        """Return a job if it is loaded."""
        return self._jobs.get(name)

    def job(self, name: JobId) -> JobStreams:
        """Return a job, and load it in this thread if it was evicted. Raises LogStoreError."""
        with self._guard:
            found = self._used(name)
            if found is not None:
                return found
            if name in self._loading or name in self._claimed:
                raise LogStoreError(f"the logs of job {name} are being loaded; try again")
            self._claimed.add(name)
        try:
            found = JobStreams(self._root / str(name))
        except OSError as error:
            raise LogStoreError(f"the logs of job {name} cannot be read: {error}") from error
        finally:
            with self._guard:
                if found is not None:
                    self._jobs[name] = found
                self._claimed.discard(name)
                self._guard.notify_all()
        return found

    async def load(self, name: JobId) -> JobStreams:
        """Return a job, and load it in a thread, as a gang has many files. Raises LogStoreError."""
        with self._guard:
            found = self._used(name)
            if found is not None:
                return found
            loading = self._loading.get(name)
            if loading is None:
                loop = asyncio.get_running_loop()
                loading = loop.run_in_executor(self._threads, self._load, name)
                self._loading[name] = loading
                loading.add_done_callback(partial(self._loaded, name))
        try:
            return await asyncio.shield(loading)  # others may wait for it, too
        except OSError as error:
            raise LogStoreError(f"the logs of job {name} cannot be read: {error}") from error

    def _load(self, name: JobId) -> JobStreams:
        with self._guard:
            self._guard.wait_for(lambda: name not in self._claimed)
            found = self._used(name)
        if found is None:
            found = JobStreams(self._root / str(name))
            with self._guard:
                self._jobs[name] = found
        return found

    def _loaded(self, name: JobId, loading: asyncio.Future[JobStreams]) -> None:
        with self._guard:
            del self._loading[name]
        if not loading.cancelled():
            loading.exception()  # raised in those who wait for it

    def _used(self, name: JobId) -> JobStreams | None:
        found = self._jobs.get(name)
        if found is not None:
            self._jobs.move_to_end(name)
        return found

    @property
    def has_excess(self) -> bool:
        return len(self._jobs) > JOBS_KEPT

    def evict(self) -> None:
        """Forget the idle jobs beyond `JOBS_KEPT`. Only the thread that writes may call it."""
        with self._guard:
            jobs = list(self._jobs.items())
        idle = (
            name
            for name, job in jobs
            if not any(s.is_open or self._in_use(s) for s in job.streams.values())
        )
        for name in list(itertools.islice(idle, max(0, len(jobs) - JOBS_KEPT))):
            self.forget(name)

    def forget(self, name: JobId) -> None:
        """Forget a job. Only the thread that writes may call it."""
        with self._guard:
            self._jobs.pop(name, None)

"""The log store: `logs/<job>/<attempt>/<node_rank>/<kind>[.<rank>]` in the state directory.

A task without output has no folder there, only a line in `logs/<job>/<attempt>/silent`.

The loop appends bytes (a copy into the page cache), and `sync_rounds` puts them on disk.
Acknowledged bytes are on disk.
"""

import asyncio
import itertools
import resource
import shutil
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.daemon.clock import Clock
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.ids import JobId, TaskId, parse_task_id
from muster.protocol.log_channel import CHUNK_BYTES_MAX, STREAMS_PER_TASK_MAX, StreamId
from orchestrator.core.storage.log_space import Bounds
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.gaps import Gap, gap_of, gap_text
from orchestrator.shell.logs.index import RECORD_BYTES
from orchestrator.shell.logs.job_streams import MARK_NAME, CompleteMark, JobStreams
from orchestrator.shell.logs.layout import note_silent, remove_all_but_mark
from orchestrator.shell.logs.space import Space
from orchestrator.shell.logs.stream_file import (
    Late,
    LogStoreError,
    Mark,
    NotWantedError,
    StreamFile,
    StreamKey,
)
from orchestrator.shell.logs.sync_rounds import Synced, SyncRounds
from orchestrator.shell.logs.tombstone import Removed, write_removed

_JOBS_KEPT: Final = 1024
# A stream is two files and 1 KiB in memory. One attempt is always stored whole, up to its plan.
_OTHER_STREAMS_MAX: Final = 1 << 17
_UNBOUNDED: Final = Bounds(1 << 62, 1 << 62)
_OPEN_SHARE: Final = 8  # share of this process's descriptors; a stream needs two

_log = structlog.get_logger("muster.logs")


class LogStore:
    """Stores the bytes that agents deliver. `changes` is bumped at `log_key(job)`; read via `job`.

    The store leaves `free_bytes_min` of its disk free, because the journal may be on it. Bytes
    beyond `bounds` are acknowledged and count in the offsets of their stream, but are not stored.
    """

    def __init__(
        self,
        root: Path,
        changes: ChangeCounters,
        clock: Clock,
        *,
        free_bytes_min: int = 0,
        bounds: Bounds = _UNBOUNDED,
        streams_max: Callable[[TaskId], int] = lambda _: STREAMS_PER_TASK_MAX,
    ) -> None:
        """`streams_max` returns how many streams the plan of a task allows."""
        self._streams_max = streams_max
        self._root = root
        self._changes = changes
        self._clock = clock
        self._bounds = bounds
        self.space = Space(root, free_bytes_min)
        self._jobs: OrderedDict[JobId, JobStreams] = OrderedDict()
        self._loading: dict[JobId, asyncio.Future[JobStreams]] = {}
        self._open: OrderedDict[StreamFile, None] = OrderedDict()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open_max = max(16, soft // _OPEN_SHARE)
        self._rounds = SyncRounds(self._on_disk, self._not_on_disk)
        self.stored_bytes = self.dropped_bytes = self.stalls = 0

    def prepare(self) -> None:
        """Create the private root folder of all logs. Without it, every stream is late."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            _log.error("log_folder_unusable", path=str(self._root), why=error.strerror)

    async def run(self) -> None:
        """Sync periodically, until cancelled."""
        await self._rounds.run()

    async def sync(self) -> None:
        """Sync everything appended so far, as far as the disk can. Bytes that cannot be synced are
        wanted again.
        """
        await self._rounds.sync()

    def _on_disk(self, stream: StreamFile, name: StreamId, mark: Mark) -> None:
        suspect = stream.is_suspect
        stream.keep(mark)
        job = self._jobs.get(job_of(name))
        if suspect and job is not None:
            self._not_late(job, stream)

    def _not_on_disk(self, stream: StreamFile, name: StreamId, why: str) -> None:
        job = self._jobs.get(job_of(name))
        before = stream.stored
        stream.roll_back()
        if job is not None:
            job.usage.add(stream.key[:2], stream.stored - before)
            self._late(job, stream.key, stream.size, why)

    def stream(self, name: StreamId) -> StreamFile:
        """Return the stream's file and create its folder.

        Raises BadId, LogStoreError and, if the task may not have this stream, NotWantedError.
        """
        job, key = self._place(name)
        found = job.streams.get(key)
        if found is not None:
            return found
        most = min(self._streams_max(name.task), STREAMS_PER_TASK_MAX)
        if key.rank < -1 or len(job.of_task.get(key[:2], ())) >= most:
            why = f"{key.file_name} is not stored: by its plan, task {name.task} has {most} logs"
            raise NotWantedError(why)
        if job.in_other_attempts(key.attempt) >= _OTHER_STREAMS_MAX:
            why = (
                f"{key.file_name} is not stored: the other attempts of its job have "
                f"{_OTHER_STREAMS_MAX} logs; a new job has its own (muster rerun)"
            )
            raise NotWantedError(why)
        try:
            path = self._folder(job, key.attempt, key.node_rank) / key.file_name
            found = StreamFile(key, path)
        except OSError as error:
            self._late(job, key, 0, error.strerror or str(error))
            raise LogStoreError(f"{job.root} cannot be used: {error.strerror}") from error
        job.add(found)
        return found

    def size(self, name: StreamId) -> int:
        """Return the offset of the next wanted byte. Raises BadId and LogStoreError."""
        return 0 if self._place(name)[0].removed is not None else self.stream(name).size

    def append(
        self, name: StreamId, offset: int, data: memoryview, ts: float, synced: Synced
    ) -> int | None:
        """Store bytes of a stream. Returns None if bytes before them are missing.

        `synced` is called with the number of bytes on disk, once they are, or with None if the disk
        has failed to take them, so that they are wanted again. If the job's logs were removed,
        bytes are acknowledged and dropped. Raises BadId and LogStoreError.
        """
        job, key = self._place(name)
        if job.removed is not None:
            synced(name, offset + len(data))
            return 0
        stream = self.stream(name)
        if stream.size < offset + len(data):
            full = self._bounds.reached(job.usage.job, job.usage.tasks.get(key[:2], 0))
            if full is not None:
                return self._skip(name, offset, len(data), gap_of(full), ts, synced)
            self._check_room(job, stream, len(data))
        taken = self._write(
            job, stream, lambda: stream.append(offset, data, ts, job.next_seq), name, synced
        )
        if taken and stream.gap == Gap.TOO_LONG:
            self.dropped_bytes += taken
        elif taken:
            self.stored_bytes += taken
        return taken

    def skip(
        self, name: StreamId, offset: int, length: int, ts: float, synced: Synced
    ) -> int | None:
        """Store a hole of a stream: it counts in the offsets, but nothing is written.

        Result and errors are those of `append`.
        """
        job, key = self._place(name)
        if job.removed is not None:
            synced(name, offset + length)
            return 0
        full = self._bounds.reached(job.usage.job, job.usage.tasks.get(key[:2], 0))
        gap = Gap.HOLE if full is None else gap_of(full)
        return self._skip(name, offset, length, gap, ts, synced)

    def _skip(
        self, name: StreamId, offset: int, length: int, gap: Gap, ts: float, synced: Synced
    ) -> int | None:
        job, key = self._place(name)
        stream = self.stream(name)
        begins = stream.gap != gap
        if begins and stream.size < offset + length:
            self._check_room(job, stream, RECORD_BYTES)
        taken = self._write(
            job, stream, lambda: stream.skip(offset, length, gap, ts, job.next_seq), name, synced
        )
        if taken and gap is not Gap.HOLE:
            self.dropped_bytes += taken
            if begins:
                _log.warning(
                    "log_bound_reached",
                    task=name.task,
                    stream=key.file_name,
                    from_byte=offset,
                    bound=gap.name.lower(),
                    job_bytes=job.usage.job,
                )
        return taken

    def _write(
        self,
        job: JobStreams,
        stream: StreamFile,
        write: Callable[[], int | None],
        name: StreamId,
        synced: Synced,
    ) -> int | None:
        """Run `write` and record its result."""
        key, before, gap = stream.key, stream.stored, stream.gap
        try:
            taken = write()
        except LogStoreError as error:
            # Burn the number even if the write failed halfway, so that no other arrival gets it.
            job.take_seq()
            self._late(job, key, stream.size, str(error.__cause__ or error))
            raise
        finally:
            job.usage.add(key[:2], stream.stored - before)
        if stream.gap == Gap.TOO_LONG and gap != Gap.TOO_LONG:
            why = gap_text(stream.gap, 0)
            _log.warning("log_too_long", path=str(stream.path), from_byte=stream.size, why=why)
        if taken:
            self._rounds.grew(taken)
            job.take_seq()
            job.grew_at = self._clock.now().mono
            self._not_late(job, stream)
            self._changes.bump([log_key(job_of(name))])
        if taken is not None:
            self._touched(stream, name, synced)
        return taken

    def has_room(self, name: StreamId) -> bool:
        """Whether the next bytes of a stream would be stored. Raises BadId and LogStoreError."""
        job, _ = self._place(name)
        return job.removed is not None or self.space.refusal(job.usage.job, CHUNK_BYTES_MAX) is None

    def end(self, name: StreamId, length: int, synced: Synced) -> bool:
        """Mark the stream as ended at `length` bytes. Returns False if some are missing.

        Raises BadId and LogStoreError.
        """
        job, key = self._place(name)
        if job.removed is not None:
            return True
        stream = self.stream(name)
        if stream.size < length:
            return False
        if stream.size > length:
            _log.warning("log_longer_than_its_end", path=str(stream.path), length=length)
        before = stream.stored
        try:
            stream.end(stream.last_ts or self._clock.now().wall, job.take_seq())
        except LogStoreError as error:
            self._late(job, key, stream.size, str(error.__cause__ or error))
            raise
        finally:
            job.usage.add(key[:2], stream.stored - before)
        if not stream.is_suspect:
            job.late.pop(key, None)
        self._changes.bump([log_key(job_of(name))])
        self._touched(stream, name, synced)
        return True

    async def end_task(self, task: TaskId, streams: int) -> bool:
        """Mark a task's logs as complete, on disk. False if streams are missing or not ended."""
        job_id, attempt, node_rank = parse_task_id(task)
        await self.load(job_id)
        job = self.job(job_id)
        if job.removed is not None or (attempt, node_rank) in job.stored:
            return True
        mine = list(job.of_task.get((attempt, node_rank), ()))
        if len(mine) < streams or not all(stream.ended for stream in mine):
            return False
        try:
            if mine:
                folder = self._folder(job, attempt, node_rank)
                marker = msgspec.json.encode(CompleteMark(len(mine)))
                await self._rounds.wait()
                if not all(stream.ended for stream in mine):
                    return False  # the end of one is not on disk
                await asyncio.to_thread(write_atomic, folder / MARK_NAME, marker, 0o600)
            else:
                # Not synced: the task wrote no byte that a power cut could lose.
                note_silent(job.root / str(attempt), node_rank)
        except (FileError, OSError) as error:
            raise LogStoreError(str(error)) from error
        await self.load(job_id)  # evicted meanwhile, perhaps
        self.job(job_id).stored.add((attempt, node_rank))
        for stream in mine:
            stream.release()
            self._open.pop(stream, None)
        self._changes.bump([log_key(job_id)])
        return True

    def job(self, job: JobId) -> JobStreams:
        """Return the job's streams. Call `load` first. Raises LogStoreError.

        Call it again after each await, because idle jobs are evicted.
        """
        found = self._jobs.get(job)
        if found is None:
            if job in self._loading:
                raise LogStoreError(f"the logs of job {job} are being loaded; try again")
            try:
                found = JobStreams(self._root / str(job))
            except OSError as error:
                raise LogStoreError(f"the logs of job {job} cannot be read: {error}") from error
            self._jobs[job] = found
            self._forget_some()
        self._jobs.move_to_end(job)
        return found

    async def load(self, job: JobId) -> None:
        """Load a job's streams in a thread, because a gang has many files. Raises LogStoreError."""
        if job in self._jobs:
            return
        loading = self._loading.get(job)
        if loading is None:
            loop = asyncio.get_running_loop()
            loading = loop.run_in_executor(None, JobStreams, self._root / str(job))
            self._loading[job] = loading
            loading.add_done_callback(partial(self._loaded, job))
        try:
            await asyncio.shield(loading)  # others may wait for it, too
        except OSError as error:
            raise LogStoreError(f"the logs of job {job} cannot be read: {error}") from error

    def _loaded(self, job: JobId, loading: asyncio.Future[JobStreams]) -> None:
        del self._loading[job]
        if not loading.cancelled() and loading.exception() is None:
            self._jobs[job] = loading.result()
            self._forget_some()

    def removed(self, job: JobId) -> Removed | None:
        """Return the removal mark of a job whose logs were removed. Raises LogStoreError."""
        return self.job(job).removed

    async def remove(self, job_id: JobId, why: str) -> None:
        """Remove all logs of a job and leave a removal mark. Raises LogStoreError."""
        await self.load(job_id)
        job = self.job(job_id)
        mark = job.removed or Removed(self._clock.now().wall, why)
        try:
            # The mark is written first, so that files left by a crash count as removed.
            if job.removed is None:
                await asyncio.to_thread(write_removed, job.root, mark)
                # The streams may have been evicted meanwhile, and loaded anew.
                await self.load(job_id)
                job = self.job(job_id)
            gone = list(job.streams.values())
            job.removed = mark
            job.clear()
            for stream in gone:
                stream.release()
                self._open.pop(stream, None)
                self._rounds.drop(stream)
            await asyncio.to_thread(remove_all_but_mark, job.root)
        except (FileError, OSError) as error:
            raise LogStoreError(f"{job.root} cannot be removed: {error}") from error
        finally:
            self._changes.bump([log_key(job_id)])

    async def forget(self, job_id: JobId) -> None:
        """Remove the whole folder of a job that retention has removed. Raises LogStoreError."""
        await self.load(job_id)
        root = self.job(job_id).root
        await self.remove(job_id, "the job was forgotten")
        try:
            await asyncio.to_thread(shutil.rmtree, root)
        except OSError as error:
            raise LogStoreError(f"{root} cannot be removed: {error}") from error
        self._jobs.pop(job_id, None)

    def close(self) -> None:
        """Close the files. Call `sync` before."""
        for stream in self._open:
            stream.release()
        self._open.clear()

    def _place(self, name: StreamId) -> tuple[JobStreams, StreamKey]:
        job_id, attempt, node_rank = parse_task_id(name.task)
        rank = -1 if name.rank is None else name.rank
        return self.job(job_id), StreamKey(attempt, node_rank, name.kind.value, rank)

    def _check_room(self, job: JobStreams, stream: StreamFile, count: int) -> None:
        """Raise LogStoreError if these bytes would use the space reserved for others."""
        why = self.space.refusal(job.usage.job, count)
        if why is None:
            return
        self._late(job, stream.key, stream.size, why)
        raise LogStoreError(f"{stream.path} is not written: {why}")

    def _late(self, job: JobStreams, key: StreamKey, offset: int, why: str) -> None:
        if key in job.late:
            return
        self.stalls += 1
        text = f"the coordinator cannot store more of this now ({why}); the node keeps it"
        job.late[key] = Late(offset, self._clock.now().wall, text)
        _log.error("log_store_failed", path=f"{job.root}/{key.attempt}", stream=key[1:], why=why)
        self._changes.bump([log_key(JobId(int(job.root.name)))])

    def _not_late(self, job: JobStreams, stream: StreamFile) -> None:
        """The next bytes of a stream can be stored again, unless no fsync has shown it yet."""
        if not stream.is_suspect and job.late.pop(stream.key, None) is not None:
            _log.info("log_store_recovered", path=str(stream.path))

    def _touched(self, stream: StreamFile, name: StreamId, synced: Synced) -> None:
        self._rounds.touched(stream, name, synced)
        if stream.is_open:
            self._open[stream] = None
            self._open.move_to_end(stream)
        while len(self._open) > self._open_max:
            oldest, _ = self._open.popitem(last=False)
            oldest.release()

    def _folder(self, job: JobStreams, attempt: int, node_rank: int) -> Path:
        """Return and create the folder of a task. Raises OSError."""
        folder = job.root / str(attempt) / str(node_rank)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _forget_some(self) -> None:
        excess = len(self._jobs) - _JOBS_KEPT
        if excess <= 0:
            return
        idle = (
            name
            for name, job in self._jobs.items()
            if not any(s.is_open or self._rounds.is_pending(s) for s in job.streams.values())
        )
        for name in list(itertools.islice(idle, excess)):
            del self._jobs[name]


def job_of(name: StreamId) -> JobId:
    """Return the job of a stream. Raises BadId."""
    return parse_task_id(name.task)[0]


def log_key(job: JobId) -> Hashable:
    """Key in `ChangeCounters` for growth of a job's logs."""
    return ("logs", job)

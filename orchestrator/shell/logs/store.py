"""The log store: `logs/<job>/<attempt>/<node_rank>/<kind>[.<rank>]` in the state directory.

A task without output has no folder there, only a line in `logs/<job>/<attempt>/silent`.

A thread, the writer, appends bytes (a copy into the page cache), and `sync_rounds` puts them on
disk. Acknowledged bytes are on disk. The event loop touches no file.
"""

import asyncio
import shutil
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Never, TypeVar

import msgspec
import structlog

from muster.daemon.clock import Clock
from muster.daemon.descriptors import descriptor_limit
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.ids import JobId, TaskId, parse_task_id
from muster.protocol.link.log_channel import CHUNK_BYTES_MAX, STREAMS_PER_TASK_MAX, StreamId
from orchestrator.core.storage.log_space import Bounds
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.folder import make_folder, refuse_unmounted
from orchestrator.shell.logs.gaps import Gap, gap_of, gap_text
from orchestrator.shell.logs.index import RECORD_BYTES
from orchestrator.shell.logs.job_cache import JobCache
from orchestrator.shell.logs.job_streams import MARK_NAME, CompleteMark, JobStreams
from orchestrator.shell.logs.layout import note_silent, remove_all_but_mark
from orchestrator.shell.logs.space import Space
from orchestrator.shell.logs.stream_file import (
    Late,
    LogStoreError,
    NotWantedError,
    StreamFile,
    StreamKey,
    StreamMark,
)
from orchestrator.shell.logs.sync_rounds import Synced, SyncRounds
from orchestrator.shell.logs.tombstone import Removed, write_removed
from orchestrator.shell.logs.writer import UNANSWERED_S, Writer

# A stream is two files and 1 KiB in memory. One attempt is always stored whole, up to its plan.
_OTHER_STREAMS_MAX: Final = 1 << 17
_UNBOUNDED: Final = Bounds(1 << 62, 1 << 62)
_OPEN_SHARE: Final = 8  # share of this process's descriptors; a stream needs two
_FILE_THREADS: Final = 4
_LOOK_EVERY_S: Final = 1.0  # whether the disk answers
_UNANSWERED: Final = "the disk of the job logs does not answer"

_T = TypeVar("_T")

_log = structlog.get_logger("muster.logs")


class LogStore:
    """Stores the bytes that agents deliver. `changes` is bumped at `log_key(job)`; read via `load`.

    Methods that are no coroutines wait for a disk: run them by `writer`.

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
        self.root = root
        self._changes = changes
        self._clock = clock
        self._bounds = bounds
        self.space = Space(root, free_bytes_min)
        self.writer = Writer()
        self.is_unanswered = False  # the log disk has not answered for a while
        self._open: OrderedDict[StreamFile, None] = OrderedDict()
        self._open_max = max(16, descriptor_limit() // _OPEN_SHARE)
        self._rounds = SyncRounds(self.writer, self._on_disk, self._not_on_disk)
        self._jobs = JobCache(root, self._rounds.is_pending)
        self._threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="log-files")
        self.stored_bytes = self.dropped_bytes = self.stalls = 0

    async def prepare(self, *, existed: bool = False) -> None:
        """Create the private root folder of all logs. Without it, every stream is late.

        `existed` means that jobs have used it. Raises FileError if its disk is not mounted.
        """

        def make() -> None:
            if existed:
                refuse_unmounted(self.root)
            make_folder(self.root)

        try:
            async with asyncio.timeout(UNANSWERED_S):
                await self.in_thread(make)
        except TimeoutError:
            _log.error("log_folder_unusable", path=str(self.root), why=_UNANSWERED)
        except OSError as error:
            _log.error("log_folder_unusable", path=str(self.root), why=error.strerror)

    async def run(self) -> None:
        """Sync periodically, until cancelled."""
        await self._rounds.run()

    async def watch(self) -> Never:
        """Log when the disk stops answering and when it answers again, until cancelled."""
        longest = 0.0
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            unanswered_s = max(self.writer.unanswered_s, self._rounds.unanswered_s)
            longest = max(longest, unanswered_s)
            if not self.is_unanswered and unanswered_s >= UNANSWERED_S:
                self.is_unanswered = True
                _log.error(
                    "log_disk_unanswered",
                    path=str(self.root),
                    for_s=round(unanswered_s, 1),
                    done="job logs wait on their nodes; nothing else does",
                )
            elif self.is_unanswered and unanswered_s < UNANSWERED_S:
                self.is_unanswered = False
                _log.info("log_disk_answers", path=str(self.root), after_s=round(longest, 1))
                longest = 0.0
            if self._jobs.has_excess and not self.is_unanswered:
                await self.writer.call(self._jobs.evict)

    async def sync(self) -> None:
        """Sync everything appended so far, as far as the disk can. Bytes that cannot be synced are
        wanted again.
        """
        await self._rounds.sync()

    def _on_disk(self, stream: StreamFile, name: StreamId, mark: StreamMark) -> None:
        suspect = stream.is_suspect
        stream.keep(mark)
        job = self._jobs.known(job_of(name))
        if suspect and job is not None:
            self._not_late(job, stream)

    def _not_on_disk(self, stream: StreamFile, name: StreamId, why: str) -> None:
        job = self._jobs.known(job_of(name))
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
            self.writer.post(synced, name, offset + len(data))
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
            self.writer.post(synced, name, offset + length)
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
            self._bump(job_of(name))
        if taken is not None:
            self._touched(stream, name, synced)
        return taken

    def has_room(self, name: StreamId) -> bool:
        """True if the next bytes of a stream would be stored. Raises BadId and LogStoreError."""
        job, _ = self._place(name)
        if job.removed is not None:
            return True
        return self.space.refusal(job.usage.job, job.files, CHUNK_BYTES_MAX) is None

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
        self._bump(job_of(name))
        self._touched(stream, name, synced)
        return True

    async def end_task(self, task: TaskId, streams: int) -> bool:
        """Mark a task's logs as complete, on disk. False if streams are missing or not ended."""
        job_id, attempt, node_rank = parse_task_id(task)
        job = await self.load(job_id)
        if job.removed is not None or (attempt, node_rank) in job.stored:
            return True
        mine = list(job.of_task.get((attempt, node_rank), ()))
        if len(mine) < streams or not all(stream.ended for stream in mine):
            return False
        try:
            if mine:
                mark = job.root / str(attempt) / str(node_rank) / MARK_NAME
                marker = msgspec.json.encode(CompleteMark(len(mine)))
                await self._rounds.wait()
                if not all(stream.ended for stream in mine):
                    return False  # the end of one is not on disk
                await self.in_thread(partial(write_atomic, mark, marker, 0o600))
            else:
                # Not synced: the task wrote no byte that a power cut could lose.
                folder = job.root / str(attempt)
                await self.in_thread(partial(note_silent, folder, node_rank))
        except (FileError, OSError) as error:
            raise LogStoreError(str(error)) from error
        await self.load(job_id)  # evicted meanwhile, perhaps
        await self.writer.call(partial(self._complete, job_id, (attempt, node_rank), mine))
        return True

    def _complete(self, job_id: JobId, task: tuple[int, int], streams: list[StreamFile]) -> None:
        self.job(job_id).stored.add(task)
        self._close_all(streams)
        self._bump(job_id)

    def job(self, job: JobId) -> JobStreams:
        """Return the job's streams. Call `load` first. Raises LogStoreError.

        Call it again after each await, because idle jobs are evicted.
        """
        return self._jobs.job(job)

    async def load(self, job: JobId) -> JobStreams:
        """Load a job's streams in a thread, because a gang has many files. Raises LogStoreError.

        The result is not kept up to date for long, because idle jobs are evicted.
        """
        return await self._jobs.load(job)

    def check_answers(self) -> None:
        """Raise LogStoreError while the disk does not answer."""
        if self.is_unanswered:
            raise LogStoreError(f"{self.root}: {_UNANSWERED}")

    async def in_thread(self, call: Callable[[], _T]) -> _T:
        """Run what waits for the disk of the logs in a thread that nothing else uses."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def hold(self, name: StreamId) -> None:
        """Notify readers that the next bytes of a stream wait for a disk that does not answer."""
        job = self._jobs.known(job_of(name))
        if job is None or job.removed is not None:
            return
        key = _key_of(name)
        if key not in job.late:
            stream = job.streams.get(key)
            self._note_late(job, key, 0 if stream is None else stream.size, _UNANSWERED)

    async def remove(self, job_id: JobId, why: str) -> None:
        """Remove all logs of a job and leave a removal mark. Raises LogStoreError."""
        job = await self.load(job_id)
        mark = job.removed or Removed(self._clock.now().wall, why)
        try:
            # The mark is written first, so that files left by a crash count as removed.
            if job.removed is None:
                await self.in_thread(partial(write_removed, job.root, mark))
                # The streams may have been evicted and loaded again.
                await self.load(job_id)
            await self.writer.call(partial(self._clear, job_id, mark))
            await self.in_thread(partial(remove_all_but_mark, job.root))
        except (FileError, OSError) as error:
            raise LogStoreError(f"{job.root} cannot be removed: {error}") from error
        finally:
            self._bump(job_id)

    def _clear(self, job_id: JobId, mark: Removed) -> None:
        job = self.job(job_id)
        gone = list(job.streams.values())
        job.removed = mark
        job.clear()
        self._close_all(gone)
        for stream in gone:
            self._rounds.drop(stream)

    async def forget(self, job_id: JobId) -> None:
        """Remove the whole folder of a job that retention has removed. Raises LogStoreError."""
        root = (await self.load(job_id)).root
        await self.remove(job_id, "the job was forgotten")
        try:
            await self.in_thread(partial(shutil.rmtree, root))
        except OSError as error:
            raise LogStoreError(f"{root} cannot be removed: {error}") from error
        await self.writer.call(partial(self._jobs.forget, job_id))

    def close(self) -> None:
        """Close the files and end the writer. Call `sync` before."""
        self.writer.close()
        self._close_all(list(self._open))

    def _close_all(self, streams: list[StreamFile]) -> None:
        for stream in streams:
            stream.release()
            self._open.pop(stream, None)

    def _bump(self, job: JobId) -> None:
        self.writer.post(self._changes.bump, [log_key(job)])

    def _place(self, name: StreamId) -> tuple[JobStreams, StreamKey]:
        return self.job(job_of(name)), _key_of(name)

    def _check_room(self, job: JobStreams, stream: StreamFile, count: int) -> None:
        """Raise LogStoreError if these bytes would use the space reserved for others."""
        why = self.space.refusal(job.usage.job, job.files, count)
        if why is None:
            return
        self._late(job, stream.key, stream.size, why)
        raise LogStoreError(f"{stream.path} is not written: {why}")

    def _late(self, job: JobStreams, key: StreamKey, offset: int, why: str) -> None:
        if key in job.late:
            return
        _log.error("log_store_failed", path=f"{job.root}/{key.attempt}", stream=key[1:], why=why)
        self._note_late(job, key, offset, why)

    def _note_late(self, job: JobStreams, key: StreamKey, offset: int, why: str) -> None:
        self.stalls += 1
        text = f"the coordinator cannot store more of this now ({why}); the node keeps it"
        job.late[key] = Late(offset, self._clock.now().wall, text)
        self._bump(JobId(int(job.root.name)))

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


def job_of(name: StreamId) -> JobId:
    """Return the job of a stream. Raises BadId."""
    return parse_task_id(name.task)[0]


def _key_of(name: StreamId) -> StreamKey:
    _, attempt, node_rank = parse_task_id(name.task)
    rank = -1 if name.rank is None else name.rank
    return StreamKey(attempt, node_rank, name.kind.value, rank)


def log_key(job: JobId) -> Hashable:
    """Key in `ChangeCounters` for growth of a job's logs."""
    return ("logs", job)

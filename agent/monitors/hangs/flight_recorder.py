"""NCCL's flight recorder: trigger a rank's dump through its pipe, and read the dump.

Pipe and dump belong to the job. So this module follows no link, never waits for a missing reader,
opens no file that is not the job's user's, and treats a dump as mere bytes. The dump is a pickle: a
short-lived process of the job's user reads it (agent/monitors/hangs/read_flight_recorder.py) and
returns plain JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.shim.system.job_files import RefusedFileError, open_checked
from agent.taskdirs.taskdirs import NCCL, TaskUser
from muster.protocol.observations.hangs import RecordedRank

PIPE: Final = "frp_"
DUMP: Final = "fr_"
"""Prefixes: of the pipes, `frp_3.pipe`, and of the dumps, `fr_3`."""
WAIT_S: Final = 5.0
READ_S: Final = 5.0
"""Time for all ranks of a task to write their dumps, and then for reading all of them."""
LATE_S: Final = 60.0
_EVERY_S: Final = 0.1
_LATE_EVERY_S: Final = 1.0
_ANSWER_BYTES_MAX: Final = 64 << 10
_DUMP_BYTES_MAX: Final = 64 << 20
_PROGRAM: Final = str(Path(__file__).parent / "read_flight_recorder.py")


class DumpTarget(NamedTuple):
    """A rank that has a pipe. `before` is the time of its last dump, 0 for never. `problem` is why
    the dump could not be triggered."""

    rank: int
    before: float = 0.0
    problem: str = ""


async def ask(folder: Path, user: TaskUser, ranks: Iterable[int]) -> list[DumpTarget]:
    """Trigger the dumps of these ranks. Returns [] if there are no recorders, as without NCCL.
    `folder` is the task's directory, `user` its user."""
    return await asyncio.to_thread(_triggered, folder / NCCL, user, ranks)


async def recorded(
    folder: Path, user: TaskUser, asked: Sequence[DumpTarget]
) -> tuple[RecordedRank, ...]:
    """Wait for the dumps and read them."""
    until = asyncio.get_running_loop().time() + WAIT_S
    found = (_one(folder / NCCL, user, one, until) for one in asked)
    return tuple(await asyncio.gather(*found))


async def written(folder: Path, user: TaskUser, asked: Sequence[DumpTarget]) -> None:
    """Wait up to LATE_S until all triggered ranks have written. A later write counts as the rank's
    own activity."""
    until = asyncio.get_running_loop().time() + LATE_S
    with contextlib.suppress(TimeoutError):
        for one in asked:
            if not one.problem:
                await _written(folder / NCCL, user, one, until, _LATE_EVERY_S)


def _triggered(folder: Path, user: TaskUser, ranks: Iterable[int]) -> list[DumpTarget]:
    """Trigger the dumps; runs in a thread."""
    found: list[DumpTarget] = []
    try:
        where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for rank in sorted(ranks):
            try:
                before = _changed_at(where, f"{DUMP}{rank}")
                trigger(where, f"{PIPE}{rank}.pipe", user.uid)
                found.append(DumpTarget(rank, before))
            except FileNotFoundError:
                continue
            except OSError as error:
                found.append(DumpTarget(rank, problem=error.strerror or str(error)))
            except RefusedFileError as error:
                found.append(DumpTarget(rank, problem=str(error)))
    finally:
        os.close(where)
    return found


def trigger(folder: int, name: str, owner: int) -> None:
    """Write a byte into the pipe. Raises FileNotFoundError, OSError and RefusedFileError."""
    pipe = open_checked(name, owner, folder, flags=os.O_WRONLY, fifo=True)
    try:
        os.write(pipe, b"1")
    finally:
        os.close(pipe)


def _changed_at(folder: int, name: str) -> float:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


async def _one(folder: Path, user: TaskUser, asked: DumpTarget, until: float) -> RecordedRank:
    if asked.problem:
        return RecordedRank(asked.rank, problem=asked.problem)
    try:
        path = await _written(folder, user, asked, until)
    except TimeoutError:
        return RecordedRank(asked.rank, problem=f"it wrote nothing within {WAIT_S:g} s")
    return await read(path, asked.rank, user, until + READ_S)


async def _written(
    folder: Path, user: TaskUser, asked: DumpTarget, until: float, every_s: float = _EVERY_S
) -> Path:
    """The path of the rank's new dump. Raises TimeoutError."""
    path = folder / f"{DUMP}{asked.rank}"
    async with asyncio.timeout_at(until):
        while not await asyncio.to_thread(_whole, path, user, asked.before):  # noqa: ASYNC110 - a file
            await asyncio.sleep(every_s)
    return path


def _whole(path: Path, user: TaskUser, before: float) -> bool:
    """True if the dump is new and complete: its last byte is the end of a pickle."""
    try:
        file = open_checked(str(path), user.uid)
    except (OSError, RefusedFileError):
        return False
    try:
        found = os.fstat(file)
        if found.st_mtime <= before or not found.st_size:
            return False
        return os.pread(file, 1, found.st_size - 1) == b"."
    finally:
        os.close(file)


async def read(path: Path, rank: int, user: TaskUser, until: float) -> RecordedRank:
    """Read a dump in a process of the task's user that can do nothing else. `until` is a time of
    the event loop's clock."""
    change: dict[str, object] = {}
    try:
        file = open_checked(str(path), user.uid)
    except (OSError, RefusedFileError) as error:
        return RecordedRank(rank, problem=str(error))
    try:
        if os.geteuid() == 0 and user.uid != 0:
            change = {"user": user.uid, "group": user.gid, "extra_groups": []}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _PROGRAM,
            str(_DUMP_BYTES_MAX),
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={},
            **change,  # type: ignore[arg-type]
        )
    except OSError as error:
        return RecordedRank(rank, problem=str(error))
    finally:
        os.close(file)
    assert process.stdout is not None
    try:
        async with asyncio.timeout_at(until):
            answer = await process.stdout.read(_ANSWER_BYTES_MAX)
            await process.wait()
        found = msgspec.json.decode(answer, type=RecordedRank)
    except TimeoutError:
        return RecordedRank(rank, problem="its dump could not be read in time")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RecordedRank(rank, problem="its dump cannot be read")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return msgspec.structs.replace(found, rank=rank)

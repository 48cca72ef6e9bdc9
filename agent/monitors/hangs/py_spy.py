"""Python stack dumps with py-spy, which reads a process's memory without stopping it.

py-spy opens files that a job's process has mapped. So it runs as the task's user, whatever user the
process has, and as root only for jobs that run as root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent.probe import py_spy_check
from agent.shims.members import ENDED, Process
from agent.taskdirs.taskdirs import TaskUser
from muster.protocol.observations.hangs import FRAMES_MAX, Frame, RankStacks, ThreadStack

_WORDS: Final = ("--nonblocking", "--json")
_AT_ONCE: Final = 4
WAIT_S: Final = 8.0
"""For all ranks of a task together: an incomplete report in time is better than none."""
_OUTPUT_BYTES_MAX: Final = 4 << 20
_THREADS_MAX: Final = 32
_OTHER_FRAMES_MAX: Final = 12
_TEXT_MAX: Final = 300
_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    os_thread_id: int | None = None
    thread_name: str | None = None
    owns_gil: bool = False
    frames: list[_Frame] = []


@dataclass(frozen=True, slots=True)
class _Said:
    code: int
    out: bytes
    err: bytes


async def stacks_of(
    ranks: Mapping[int, Process], user: TaskUser, *, threads: bool
) -> tuple[RankStacks, ...]:
    """The stacks of these processes of a task of `user`, by rank; with `threads`, of all their
    threads. The answer for a rank contains its problem, if any."""
    program = py_spy_check.find()
    gate = asyncio.Semaphore(_AT_ONCE)
    until = asyncio.get_running_loop().time() + WAIT_S

    async def one(rank: int, process: Process) -> RankStacks:
        if program is None:
            return RankStacks(rank, process.pid, problem="py-spy is not installed")
        if process.problem:
            return RankStacks(rank, process.pid, problem=process.problem)
        try:
            async with asyncio.timeout_at(until), gate:
                return await _one(program, rank, process, user, threads=threads)
        except TimeoutError:
            problem = f"py-spy did not answer within {WAIT_S:g} s"
            return RankStacks(rank, process.pid, problem=problem)

    return tuple(await asyncio.gather(*(one(*pair) for pair in sorted(ranks.items()))))


async def _one(
    program: str, rank: int, process: Process, user: TaskUser, *, threads: bool
) -> RankStacks:
    pid = process.pid
    if not process.same:
        return RankStacks(rank, pid, problem=ENDED)
    try:
        said = await _run([*_as_user(user), program, "dump", *_WORDS, "--pid", str(pid)])
    except OSError as error:
        return RankStacks(rank, pid, problem=str(error)[:_TEXT_MAX])
    # If the pid was reused, the stacks may belong to another process.
    if not process.same:
        return RankStacks(rank, pid, problem=ENDED)
    if said.code != 0:
        return RankStacks(rank, pid, problem=_why(said.err))
    try:
        found = msgspec.json.decode(said.out, type=list[_Thread])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return RankStacks(rank, pid, problem=f"py-spy's output cannot be parsed: {error}")
    return RankStacks(rank, pid, _main_first(found, pid, threads=threads))


def _as_user(user: TaskUser) -> list[str]:
    """The command prefix that switches to `user`. If the kernel restricts ptrace to child
    processes, the prefix keeps CAP_SYS_PTRACE."""
    if os.geteuid() != 0 or user.uid == 0:
        return []
    words = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    if _restricted():
        words += ["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]
    return [*words, "--"]


def _restricted() -> bool:
    try:
        return _SCOPE.read_text().strip() != "0"
    except OSError:
        return False


async def _run(argv: list[str]) -> _Said:
    """Run a command. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"},
        limit=_OUTPUT_BYTES_MAX,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out = await _all_of(process.stdout)
        err = await _all_of(process.stderr)
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return _Said(code, out, err)


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while data := await stream.read(1 << 16):
        found += data
        if len(found) > _OUTPUT_BYTES_MAX:
            raise OSError(f"the output of py-spy exceeds {_OUTPUT_BYTES_MAX} bytes")
    return bytes(found)


def _why(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    first = lines[0].removeprefix("Error: ") if lines else "py-spy failed without a message"
    if "ermission" in said.decode("utf-8", "replace") or "os error 1)" in first:
        first += "; the kernel does not let this agent look at it (kernel.yama.ptrace_scope)"
    return first[:_TEXT_MAX]


def _main_first(found: list[_Thread], pid: int, *, threads: bool) -> tuple[ThreadStack, ...]:
    """The main thread first; without `threads`, of the others only the one that holds the GIL."""
    main = [thread for thread in found if thread.os_thread_id == pid][:1]
    main = main or [thread for thread in found if thread.thread_name == "MainThread"][:1]
    others = [t for t in found if t not in main and t.frames and (threads or t.owns_gil)]
    stacks = [_thread(thread, FRAMES_MAX) for thread in main or [_Thread(thread_name="MainThread")]]
    stacks += [_thread(thread, _OTHER_FRAMES_MAX) for thread in others[: _THREADS_MAX - 1]]
    return tuple(stacks)


def _thread(thread: _Thread, most: int) -> ThreadStack:
    frames = tuple(
        Frame(_printable(frame.name[:120]), _printable(frame.filename[-200:]), frame.line)
        for frame in thread.frames[:most]
    )
    return ThreadStack(_printable((thread.thread_name or "")[:64]), frames, thread.owns_gil)


def _printable(name: str) -> str:
    """The name, which a job chose, safe for a terminal."""
    return "".join(char if char.isprintable() else "?" for char in name)

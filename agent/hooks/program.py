"""A program of the site: the check that nobody else can change it, and a run bounded in time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from muster.daemon.abandoned_thread import BlockingCall
from muster.daemon.errors import DaemonError
from muster.protocol.observations.hardware_events import TEXT_MAX

_KEPT_BYTES: Final = 4096
_REST_READS: Final = 256
_REST_S: Final = 5.0
_LINE_CHARS_MAX: Final = TEXT_MAX - 100
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class HookError(DaemonError):
    """A program of the site is not safe to run, failed or took too long. The text is one line."""


class _Run(NamedTuple):
    """`code` is None after a timeout. `output` is the end of it."""

    code: int | None
    output: bytes


def check_program(path: Path) -> None:
    """Raise HookError unless the file is executable, and only root (and the agent's own user, if
    that is another one) can change it or replace it or a folder above it.
    """
    try:
        if os.path.realpath(path, strict=True) != str(path):
            raise HookError(f"{path} is not an absolute path without symbolic links")
        for place in (path, *path.parents):
            _check_place(place)
        if not stat.S_ISREG(os.stat(path).st_mode) or not os.access(path, os.X_OK):
            raise HookError(f"{path} is not an executable file")
    except OSError as error:
        raise HookError(f"{path}: {error.strerror}") from error


def _check_place(place: Path) -> None:
    found = os.stat(place, follow_symlinks=False)
    if found.st_uid not in {0, os.geteuid()}:
        raise HookError(f"{place} belongs to uid {found.st_uid}, not to root")
    # In a sticky folder, nobody can replace what belongs to another.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & _OTHERS_WRITE and not sticky:
        raise HookError(f"others can write {place}: chmod go-w {place}")


async def run_program(path: Path, name: str, env: Mapping[str, str], timeout_s: float) -> str:
    """Run the program in a session of its own, and return the last line of its output.

    Its environment is `env` alone. If it fails or takes too long, raise HookError with that line.
    After `timeout_s`, its process group is killed.
    """
    call = BlockingCall(partial(_run, path, env, timeout_s), f"agent.hooks.{name}")
    try:
        done = await call.result(timeout_s + _REST_S)
    except (OSError, TimeoutError) as error:
        why = str(error) or "it cannot be killed"
        raise HookError(f"{name} could not be run: {why}") from error
    line = _last_line(done.output)
    said = f": {line}" if line else ""
    if done.code is None:
        raise HookError(f"{name} took longer than {timeout_s:g} s{said}")
    if done.code < 0:
        raise HookError(f"{name} was ended by signal {-done.code}{said}")
    if done.code > 0:
        raise HookError(f"{name} failed with exit code {done.code}{said}")
    return line


def _run(path: Path, env: Mapping[str, str], timeout_s: float) -> _Run:
    """The body of the thread. Raises OSError and HookError."""
    check_program(path)
    ours, theirs = os.pipe()
    with contextlib.closing(_Output(ours)) as output:
        try:
            process = subprocess.Popen(
                [path],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                cwd="/",
                env=dict(env),
                umask=0o077,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        ended = os.pidfd_open(process.pid)
        try:
            in_time = output.read_until(ended, timeout_s)
            if not in_time:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        finally:
            os.close(ended)
        output.read_rest()
        return _Run(code if in_time else None, output.tail)


class _Output:
    """The end of a program's output. What it has started may hold the pipe open after its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.tail = b""
        self._open = True
        os.set_blocking(fd, False)

    def read_until(self, ended: int, timeout_s: float) -> bool:
        """Read until the descriptor `ended` is readable. Returns False after the timeout."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(ended, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = dict(poll.poll(left_s * 1000))
            if self._fd in ready and not self._read():
                poll.unregister(self._fd)
            if ended in ready:
                return True
        return False

    def read_rest(self) -> None:
        """Read what is there now."""
        for _ in range(_REST_READS):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        os.close(self._fd)

    def _read(self) -> bool:
        """Read once. Returns False if there was nothing."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        self.tail = (self.tail + data)[-_KEPT_BYTES:]
        self._open = bool(data)
        return self._open


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").splitlines()
    cleaned = ("".join(c if c.isprintable() else " " for c in line).strip() for line in lines)
    return next((line for line in reversed(list(cleaned)) if line), "")[:_LINE_CHARS_MAX]

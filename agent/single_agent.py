"""Ensure that only one agent serves a machine. A second one is refused with the first one's pid.

The claim is a lock on a file that no other user can open. A name that anybody may take, such as an
abstract socket or a file in /tmp, would let any job keep the agent from starting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from agent.config import AgentConfig
from muster.daemon.errors import DaemonError, FileError

RUNTIME: Final = Path("/run/muster")
"""Root's directory for the claim; the unit's RuntimeDirectory."""
LOCK: Final = "agent.lock"
_USER_RUNTIME: Final = "XDG_RUNTIME_DIR"
_COMMAND_CHARS_MAX: Final = 200


class SecondAgentError(DaemonError):
    """Another agent serves this machine, and the two are not configured to share it."""


@contextlib.contextmanager
def single_agent_lock(
    config: AgentConfig, environ: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Claim this machine exclusively, unless the configuration shares it.

    An ordinary user's agent excludes only other agents of that user. If that user has no runtime
    directory, only the lock of the state directory applies. Raises SecondAgentError and FileError.
    """
    folder = None if config.shared_host else _folder(environ)
    if folder is None:
        yield
        return
    claim = _claim(folder, config)
    try:
        yield
    finally:
        # Keep the file: otherwise a third agent could lock a new one while a second has this one
        # open.
        os.close(claim)


def _folder(environ: Mapping[str, str]) -> Path | None:
    if os.geteuid() == 0:
        return RUNTIME
    given = environ.get(_USER_RUNTIME, "")
    try:
        # After `su` the variable still names the previous user's directory.
        ours = given.startswith("/") and os.stat(given).st_uid == os.geteuid()
    except OSError:
        return None
    return Path(given, "muster") if ours else None


def _claim(folder: Path, config: AgentConfig) -> int:
    """The descriptor that holds the lock. Raises SecondAgentError and FileError."""
    path = folder / LOCK
    try:
        claim = _opened(folder)
    except OSError as error:
        raise FileError(
            f"{path} cannot be opened to claim this machine: {error.strerror or error}"
        ) from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(claim, 0)
        with contextlib.suppress(OSError):  # a full disk only hides our process id
            os.pwrite(claim, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = _holder(claim)
        os.close(claim)
        raise SecondAgentError(
            f"another agent already serves this machine: {holder}; this one is process "
            f"{os.getpid()}, node {config.node} in {config.state_dir}. Stop one of them, or set "
            "shared_host: true in the configuration of both for experiments"
        ) from error
    except OSError as error:
        os.close(claim)
        raise FileError(f"{path} cannot be locked: {error.strerror or error}") from error
    return claim


def _opened(folder: Path) -> int:
    """Open the lock file and check that only this user can use it. Raises OSError and FileError."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # A user who may write the directory could replace the file.
        _check(folder, os.fstat(within), stat.S_IWGRP | stat.S_IWOTH)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        claim = os.open(LOCK, flags, 0o600, dir_fd=within)
    finally:
        os.close(within)
    try:
        # A user who may open the file, even for reading, could hold the lock.
        _check(folder / LOCK, os.fstat(claim), stat.S_IRWXG | stat.S_IRWXO)
    except FileError:
        os.close(claim)
        raise
    return claim


def _check(path: Path, found: os.stat_result, others: int) -> None:
    """Raises FileError if another user owns the path, or if its mode grants `others` bits."""
    if found.st_uid != os.geteuid():
        raise FileError(
            f"{path} belongs to user {found.st_uid}, who could keep this agent from starting: "
            "remove it, and start the agent again"
        )
    if found.st_mode & others:
        raise FileError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so another user could keep this "
            f"agent from starting; run: chmod go-rwx {path}"
        )


def _holder(claim: int) -> str:
    pid = os.pread(claim, 32, 0).decode("ascii", errors="replace").strip()
    if not pid.isdecimal():
        return "one that has not written its process id"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, UnicodeDecodeError):
        return f"process {pid}"
    return f"process {pid} ({command[:_COMMAND_CHARS_MAX]})"

"""Examine the tasks on this node after a start: which shims are alive, and which tasks have to be
ended because their shim is dead."""

from __future__ import annotations

import fcntl
import os
import re
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from agent.core.shim_protocol import ShimPhase, ShimStatus, ShimStream, StoppedBy
from agent.leftovers.kill import all_doomed, kill_everything_of
from agent.shim import exit_record
from agent.shim.programs.preparation import LAUNCHER_LOG, SETUP_LOG
from agent.shim.system import syscalls
from agent.shim.system.cgroup import Cgroup
from agent.shims.connection import decode
from agent.shims.shim_files import FOLDER_FLAGS, decode_identity, read_document
from muster.protocol.ids import TaskId

DYING_S = 0.002
# The names that agent/shim/programs/ranks.py and agent/shim/programs/preparation.py give.
_OF_RANK: Final = re.compile(r"rank-(\d{1,8})\.(stdout|stderr)")
_SINGLE: Final = {LAUNCHER_LOG: "launcher", SETUP_LOG: "setup"}


class Ownership(StrEnum):
    """ALIVE: connect to the shim. ENDED: the shim left its exit record.

    LOST: the shim died without a record; the agent writes it.
    """

    ALIVE = "alive"
    ENDED = "ended"
    LOST = "lost"


class FoundTask(msgspec.Struct, frozen=True):
    """A task's directory and the state of its shim.

    `status` is the exit record, None while ALIVE.
    """

    task: str
    task_dir: Path
    ownership: Ownership
    status: ShimStatus | None = None


def examine(task_dir: Path) -> FoundTask:
    """Determine a task's ownership. Also used for a connection that ended without a release.

    Blocks while processes die.
    """
    folder_fd = os.open(task_dir, FOLDER_FLAGS)
    lock = -1
    try:
        # While the agent holds the lock, no shim can start here.
        lock = _take_lock(folder_fd)
        if lock < 0:
            return FoundTask(task_dir.name, task_dir, Ownership.ALIVE)
        status = read_document(folder_fd, exit_record.EXIT, decode)
        if status is not None and status.phase.terminal:
            ownership = (
                Ownership.LOST if status.stopped_by == StoppedBy.SHIM_LOST else Ownership.ENDED
            )
            return FoundTask(task_dir.name, task_dir, ownership, status)
        status = _bury(task_dir, folder_fd)
        return FoundTask(task_dir.name, task_dir, Ownership.LOST, status)
    finally:
        os.close(folder_fd)
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _take_lock(folder_fd: int) -> int:
    """Take the lock of the directory. Returns -1 while a living shim holds it.

    The kernel closes a dying process's files one by one: its connection may already be closed while
    it still holds the lock.
    """
    while True:
        try:
            return exit_record.take_lock(folder_fd)
        except BlockingIOError:
            identity = read_document(folder_fd, exit_record.IDENTITY, decode_identity)
        if identity is None or identity.start_time is None:
            return -1
        if not syscalls.exiting(identity.pid, identity.start_time):
            return -1
        time.sleep(DYING_S)


def _bury(task_dir: Path, folder_fd: int) -> ShimStatus:
    """For a shim that died without a record: end all its processes and write the record in its
    place."""
    identity = read_document(folder_fd, exit_record.IDENTITY, decode_identity)
    survivors: list[int] = []
    doomed = False
    # Without an identity the shim never served a command. After a reboot none of its processes is
    # left, and its pids and its cgroup may belong to others.
    if identity is not None and identity.boot_id == syscalls.boot_id():
        cgroup = Cgroup(identity.cgroup) if identity.cgroup else None
        survivors = kill_everything_of(identity.mark, cgroup)
        doomed = bool(survivors) and all_doomed(identity.mark, cgroup)
    status = ShimStatus(
        task=TaskId(task_dir.name),
        phase=ShimPhase.STUCK if survivors else ShimPhase.CLEANED,
        streams=_streams(folder_fd),
        stopped_by=StoppedBy.SHIM_LOST,
        survivors=tuple(survivors),
        doomed=doomed,
    )
    exit_record.write_exit(folder_fd, vars(status))
    return status


def _streams(folder_fd: int) -> tuple[ShimStream, ...]:
    """The task's log files, found by their names: no other record of them exists."""
    try:
        logs = os.open(exit_record.LOGS, FOLDER_FLAGS, dir_fd=folder_fd)
    except FileNotFoundError:
        return ()
    try:
        names = sorted(os.listdir(logs))
    finally:
        os.close(logs)
    found = []
    for name in names:
        if name in _SINGLE:
            found.append(ShimStream(_SINGLE[name], f"{exit_record.LOGS}/{name}"))
        elif (match := _OF_RANK.fullmatch(name)) is not None:
            rank, stream = match.groups()
            found.append(ShimStream(stream, f"{exit_record.LOGS}/{name}", int(rank)))
    return tuple(found)

"""Task directories: created closed to others, removed without following a link.

STATE_DIR/tasks/42.1.0/     the agent's; task.json, the shim's files, hostfile, hosts
          .../logs/         the shim's; the job gets descriptors, never a path
          .../scratch/      the job's; goes with the task
          .../code/         the job's copy of the code that travels with it, or that git fetches
          .../nccl/         the job's; NCCL writes its lines there
          .../private/tmp/  the job's /tmp, if it has one of its own
STATE_DIR/output/42/1/      the job's; stays when the task goes
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from agent.core.inputs import TaskPaths
from agent.core.record import TaskRecord
from agent.hostsfile.tables import machine_text
from agent.taskdirs.rmtree import remove_tree
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.link.codec import COMMAND_BYTES_MAX
from muster.protocol.link.control_channel import PrepareTask

TASKS: Final = "tasks"
OUTPUT: Final = "output"
MANIFEST: Final = "task.json"
HOSTFILE: Final = "hostfile"
HOSTS: Final = "hosts"
SCRATCH: Final = "scratch"
NCCL: Final = "nccl"
CODE: Final = "code"
PRIVATE: Final = "private"
TMP: Final = "tmp"
# Directories that are being created or removed; no task has such a name.
_NEW: Final = ".new-"
_GONE: Final = ".gone-"

_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The job's group may traverse to its own files, and list nothing.
_PASS: Final = 0o710
_MANIFEST_BYTES_MAX: Final = 3 * COMMAND_BYTES_MAX
# Minimum for a task: its manifest, its shim's record, and the beginning of its logs. A task that
# cannot write its record cannot end.
RESERVE_BYTES: Final = 16 << 20

_log = structlog.get_logger("agent.taskdirs.taskdirs")


def is_being_created(name: str) -> bool:
    """True if an entry of the tasks directory is being created or removed."""
    return name.startswith((_NEW, _GONE))


def has_tasks(state_dir: Path) -> bool:
    """True if a state directory has tasks of an earlier agent process. Raises FileError."""
    try:
        with os.scandir(state_dir / TASKS) as entries:
            return any(
                entry.is_dir(follow_symlinks=False) and not is_being_created(entry.name)
                for entry in entries
            )
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError(f"{state_dir / TASKS} cannot be read: {error.strerror}") from error


class DiskFullError(FileError):
    """The disk of the state directory has too little room to begin a task."""


class Owner(msgspec.Struct, frozen=True):
    """Account that owns a job's directories."""

    name: str
    uid: int
    gid: int


class TaskUser(NamedTuple):
    """User of a task."""

    uid: int
    gid: int


def user_of(folder: Path) -> TaskUser:
    """Return the user of a task: the owner of its scratch directory. An account's number may have
    changed, but a running task keeps its own. Raises OSError.
    """
    found = os.stat(folder / SCRATCH, follow_symlinks=False)
    return TaskUser(found.st_uid, found.st_gid)


class Manifest(msgspec.Struct, frozen=True):
    """Facts about a task that a later agent process needs. `record` is what the coordinator has
    said since the task was created."""

    task: TaskId
    prepare: PrepareTask
    paths: TaskPaths
    ports: tuple[int, ...]
    record: TaskRecord | None = None


def owner_named(name: str | None) -> Owner | None:
    """Return the account of `run_as`, or None if jobs run as the agent's user. Raises FileError."""
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise FileError(
            f"run_as: there is no user {name!r} on this node; add the account or name another"
        ) from error
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise FileError(
            f"run_as: only root can run jobs as {name!r}, and this agent runs as uid {os.geteuid()}"
        )
    return Owner(name, entry.pw_uid, entry.pw_gid)


class TaskDirs:
    """All task directories of one agent. The methods block on the disk: call them from a thread."""

    def __init__(
        self,
        state_dir: Path,
        machine_hosts: Path | None = None,
        *,
        others: bool = False,
        private_tmp: bool = False,
    ) -> None:
        """Create missing parts of the state directory. Each task gets its own copy of
        `machine_hosts`, and with `private_tmp` a folder for its own /tmp. `others`: jobs run as
        other users than the agent. Raises FileError.
        """
        self._root = state_dir
        self._tasks = state_dir / TASKS
        self._output = state_dir / OUTPUT
        self._machine_hosts = machine_hosts
        self._private_tmp = private_tmp
        # The end of an attempt must not remove the job's directory while the next one begins.
        self._outputs = threading.Lock()
        try:
            for name in (TASKS, OUTPUT):
                (state_dir / name).mkdir(mode=0o700, exist_ok=True)
            if others:
                # A job's user traverses them to its own directories; nobody can list them.
                for folder in (state_dir, state_dir / TASKS, state_dir / OUTPUT):
                    folder.chmod(0o711)
        except OSError as error:
            raise FileError(
                f"{error.filename} cannot be made or changed: {error.strerror}; "
                "the agent must own its state_dir"
            ) from error

    @property
    def root(self) -> Path:
        """State directory."""
        return self._root

    def path(self, task: TaskId) -> Path:
        """Return the directory of a task, existing or not. Raises BadId: no other text becomes a
        path.
        """
        parse_task_id(task)
        return self._tasks / task

    def hosts_file(self, task: TaskId) -> Path:
        """Return the hosts file that only the task's job sees, if jobs have private ones."""
        return self.path(task) / HOSTS

    def create(
        self,
        prepare: PrepareTask,
        ports: tuple[int, ...],
        owner: Owner | None = None,
        copy_code: Callable[[Path, Owner | None], None] | None = None,
    ) -> TaskPaths:
        """Create the task's directories, those of its job for `owner` (None: the agent's user), and
        write its manifest. `copy_code` fills the directory of the job's code. On FileError nothing
        is left.
        """
        task = prepare.task
        job, attempt, _ = parse_task_id(task)
        folder = self.path(task)
        if prepare.git is not None:
            copy_code = _hand_over
        paths = TaskPaths(
            workdir=prepare.workdir or f"{folder}/{SCRATCH if copy_code is None else CODE}",
            scratch=f"{folder}/{SCRATCH}",
            output=f"{self._output}/{job}/{attempt}",
            hostfile=f"{folder}/{HOSTFILE}",
            hosts="" if self._machine_hosts is None else str(self.hosts_file(task)),
            hosts_of="" if self._machine_hosts is None else str(self._machine_hosts),
            nccl=f"{folder}/{NCCL}",
            tmp=f"{folder}/{PRIVATE}/{TMP}" if self._private_tmp else "",
        )
        manifest = Manifest(task, prepare, paths, ports)
        self._check_room()
        try:
            with self._outputs, _opened(self._output) as output:
                _make_output(output, (str(job), str(attempt)), owner)
            with _opened(self._tasks) as tasks:
                data = msgspec.json.encode(manifest)
                self._make_task(tasks, task, data, owner, copy_code)
        except FileError:
            with contextlib.suppress(OSError):
                self._remove_entry(f"{_NEW}{task}")
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                self._remove_entry(f"{_NEW}{task}")
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (DiskFullError if full else FileError)(
                f"the folders of task {task} cannot be made in {self._root}: {error.strerror}"
            ) from error
        return paths

    def _check_room(self) -> None:
        try:
            disk = os.statvfs(self._root)
        except OSError as error:
            raise FileError(f"{self._root} cannot be examined: {error.strerror}") from error
        free = disk.f_bavail * disk.f_frsize
        if free < RESERVE_BYTES:
            raise DiskFullError(
                f"the disk of {self._root} is full: {free >> 20} MiB are free and a task needs "
                f"{RESERVE_BYTES >> 20} MiB to start; make room, or move the agent's `state_dir`"
            )

    def manifest(self, task: TaskId) -> Manifest | None:
        """Return the manifest from the task's creation, or None if it is unreadable."""
        try:
            with _opened(self._tasks) as tasks, _opened(task, tasks) as folder:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(MANIFEST, flags, dir_fd=folder), "rb") as file:
                    return msgspec.json.decode(file.read(_MANIFEST_BYTES_MAX), type=Manifest)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def store(self, task: TaskId, record: TaskRecord) -> None:
        """Write what the coordinator has said of a task into its manifest. When this returns, it is
        on disk. Raises FileError.
        """
        manifest = self.manifest(task)
        if manifest is None:
            raise FileError(f"the manifest of task {task} cannot be read")
        data = msgspec.json.encode(msgspec.structs.replace(manifest, record=record))
        write_atomic(self._tasks / task / MANIFEST, data, 0o600)

    def found(self) -> list[TaskId]:
        """Return the tasks with directories here."""
        tasks = []
        for name in sorted(os.listdir(self._tasks)):
            try:
                parse_task_id(name)
            except BadId:
                continue
            if _is_folder(self._tasks / name):
                tasks.append(TaskId(name))
        return tasks

    def set_aside(self) -> list[str]:
        """Return the names of half-created and half-removed directories, for `remove_left`.

        Half-created ones get another name, because the same task may be created again.
        """
        left = []
        with _opened(self._tasks) as tasks:
            for name in filter(is_being_created, os.listdir(tasks)):
                away = name
                if name.startswith(_NEW):
                    away = f"{_GONE}{secrets.token_hex(8)}"
                    os.rename(name, away, src_dir_fd=tasks, dst_dir_fd=tasks)
                left.append(away)
        return left

    def remove_left(self, names: Iterable[str]) -> None:
        """Remove these directories, as far as possible; what stays does no harm. May take long."""
        for name in names:
            try:
                self._remove_entry(name)
            except OSError as error:
                _log.warning(
                    "folder_not_removed", folder=str(self._tasks / name), why=error.strerror
                )

    def others(self, tasks: Collection[TaskId]) -> list[str]:
        """The names of entries beside those of `tasks`, made by no agent. Raises OSError."""
        names = set(os.listdir(self._tasks)).difference(tasks)
        return sorted(name for name in names if not is_being_created(name))

    def remove(self, task: TaskId) -> None:
        """Remove the task's directory, following no link. Does nothing if it has gone.

        Its output stays, unless it is empty. Raises FileError.
        """
        job, attempt, _ = parse_task_id(task)
        away = f"{_GONE}{task}"
        try:
            # It stops being a task at once, however long the rest takes.
            if _is_folder(self.path(task)):
                with _opened(self._tasks) as tasks:
                    os.rename(task, away, src_dir_fd=tasks, dst_dir_fd=tasks)
            for name in (away, f"{_NEW}{task}"):
                self._remove_entry(name)
            with (
                self._outputs,
                _opened(self._output) as output,
                contextlib.suppress(OSError),
            ):
                os.rmdir(f"{job}/{attempt}", dir_fd=output)
                os.rmdir(str(job), dir_fd=output)
        except OSError as error:
            raise FileError(
                f"the folder of task {task} cannot be removed from {self._tasks}: {error.strerror}"
            ) from error

    def _remove_entry(self, name: str) -> None:
        with _opened(self._tasks) as tasks:
            remove_tree(name, tasks)

    def _make_task(
        self,
        tasks: int,
        task: TaskId,
        manifest: bytes,
        owner: Owner | None,
        copy_code: Callable[[Path, Owner | None], None] | None,
    ) -> None:
        new = f"{_NEW}{task}"
        os.mkdir(new, 0o700, dir_fd=tasks)
        with _opened(new, tasks) as folder:
            _write(folder, MANIFEST, manifest, 0o600)
            if self._machine_hosts is not None:
                _write(folder, HOSTS, machine_text(self._machine_hosts), 0o644)
            _make_owned(SCRATCH, folder, owner)
            _make_owned(NCCL, folder, owner)
            if self._private_tmp:
                # Under this path it is the agent's alone: no other job of the user can lay a link
                # where root makes mount points.
                os.mkdir(PRIVATE, 0o700, dir_fd=folder)
                with _opened(PRIVATE, folder) as private:
                    _make_owned(TMP, private, owner)
            if copy_code is not None:
                # Nobody but the agent can enter the new folder, so paths in it are safe.
                os.mkdir(CODE, 0o700, dir_fd=folder)
                copy_code(self._tasks / new / CODE, owner)
            if owner is not None:
                os.chown(folder, 0, owner.gid)
                os.chmod(folder, _PASS)
        os.rename(new, task, src_dir_fd=tasks, dst_dir_fd=tasks)


def _hand_over(folder: Path, owner: Owner | None) -> None:
    """Leave the directory empty for git, which runs as the job's user."""
    if owner is not None:
        os.chown(folder, owner.uid, owner.gid)


def _make_output(output: int, parts: tuple[str, str], owner: Owner | None) -> None:
    job, attempt = parts
    with contextlib.suppress(FileExistsError):
        os.mkdir(job, 0o700, dir_fd=output)
    with _opened(job, output) as folder:
        if owner is not None:
            os.chown(folder, 0, owner.gid)
            os.chmod(folder, _PASS)
        _make_owned(attempt, folder, owner)


def _make_owned(name: str, above: int, owner: Owner | None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    if owner is not None:
        with _opened(name, above) as folder:
            before = os.fstat(folder).st_uid
            if before not in (0, owner.uid):
                # A job of the same number in another cluster, or of another user.
                raise PermissionError(errno.EPERM, f"{name} belongs to uid {before}")
            os.chown(folder, owner.uid, owner.gid)


def _is_folder(path: Path) -> bool:
    """True if `path` is a folder and no link to one. Raises OSError."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _opened(path: str | Path, above: int | None = None) -> Iterator[int]:
    fd = os.open(path, _DIR, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(folder: int, name: str, data: bytes, mode: int) -> None:
    with open(os.open(name, _WRITE, mode, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)

"""Files that survive a power failure, their owners and versions, and the lock of a state folder."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from muster.daemon.errors import DirectoryLockedError, FileError

LOCK_NAME = "lock"
FileVersion = tuple[int, int, int]


def write_atomic(
    path: Path, data: bytes, mode: int, *, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file atomically: at every instant either the old or the new content is complete.

    When this returns, the new content is on disk. `mode` is the permission bits, independent of the
    umask. `owner` is a user and a group, by default ours. The folder must exist. If `path` is a
    symbolic link, the link is replaced. Waits for the disk, so call it from an executor. Raises
    FileError, and then the old content stands.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                if owner is not None and owner != (os.geteuid(), os.getegid()):
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    """Sync a folder's entries to disk. Otherwise a renamed file may be gone after a
    power failure.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Sync a file's content to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def file_version(found: os.stat_result) -> FileVersion:
    """A value that changes when the file is written or replaced."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def give_to_owner(path: Path) -> None:
    """Give a file that root created to the owner of its folder, whose daemon could not open it
    otherwise.

    If that fails, the file stays root's, and the daemon reports it.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):
        folder = path.parent.stat()
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            # A second hard link may be a file that must not change its owner.
            if found.st_nlink == 1 and found.st_uid != folder.st_uid:
                os.fchown(fd, folder.st_uid, folder.st_gid)
        finally:
            os.close(fd)


class DirectoryLock:
    """The lock of a folder, from `lock_directory` until `release` or the end of the process.

    The kernel drops the lock when the last copy of its descriptor closes, so a crash leaves nothing
    to clean up. A child made by fork without exec keeps a copy, and must close `fileno()`.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor that carries the lock, -1 once released."""
        return self._fd

    def release(self) -> None:
        """Release the lock. The lock file stays, because removing it would race with the next
        holder.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def lock_directory(path: Path) -> DirectoryLock:
    """Lock a daemon's state folder exclusively. Creates the folder with mode 0700 if missing, and
    missing folders above it so that others can pass through them: the users of jobs have to.

    Raises DirectoryLockedError, which names the process that holds it, and FileError if the folder
    cannot be made or written.
    """
    try:
        for above in reversed(path.parents):
            if not above.exists():
                above.mkdir(exist_ok=True)
                above.chmod(0o711)  # whatever the umask is
        path.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path / LOCK_NAME, flags, 0o600)
        give_to_owner(path / LOCK_NAME)
    except OSError as error:
        raise FileError(
            f"{path} cannot be used as a state folder: {error.strerror or error}; "
            "name another with state_dir, or run the daemon as the user who owns it"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):  # On a full disk the pid cannot be written.
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        pid = _read_pid(fd)
        os.close(fd)
        holder = "another process" if pid is None else f"process {pid}"
        raise DirectoryLockedError(
            f"{path} is in use by {holder}; stop it, or give this daemon a state_dir of its own",
            pid,
        ) from error
    except OSError as error:
        os.close(fd)
        raise FileError(
            f"{path / LOCK_NAME} cannot be locked: {error.strerror or error}"
        ) from error
    return DirectoryLock(path, fd)


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode("ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else None

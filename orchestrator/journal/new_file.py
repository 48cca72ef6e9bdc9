"""New files that appear under their name complete, and never replace one that is there."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster.daemon.durable_files import sync_directory
from muster.daemon.errors import FileError

# Errors of a file system without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a private file beside `path`, which gets that name at the end, on disk.

    Of several processes that write the same name, one succeeds. Raises FileError if the name is
    taken, and OSError.
    """
    if path.exists():
        raise _taken(path)
    _remove_leftovers(path)
    temporary, fd = _private_file(path)
    try:
        yield temporary
        os.fsync(fd)
        _publish(temporary, path)
        sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            for name in _names(temporary):
                name.unlink(missing_ok=True)
        os.close(fd)


def _private_file(path: Path) -> tuple[Path, int]:
    """Create a file that is locked as long as it is written to. Raises OSError."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Before it was locked, another process may have taken it for a leftover.
            if os.path.samestat(os.fstat(fd), os.stat(temporary)):
                return temporary, fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise _taken(path) from None
        os.replace(temporary, path)


def _remove_leftovers(path: Path) -> None:
    """Remove the private files of processes that were killed. Raises OSError."""
    before, after = f".{path.name}.", ".tmp"
    for name in os.listdir(path.parent):
        if not (name.startswith(before) and name.endswith(after)):
            continue
        leftover = path.with_name(name)
        try:
            fd = os.open(leftover, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        with open(fd, "rb"), contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for one in _names(leftover):
                one.unlink(missing_ok=True)


def _names(temporary: Path) -> tuple[Path, Path]:
    """The file, and the rollback journal that SQLite may have beside it."""
    return temporary, temporary.with_name(f"{temporary.name}-journal")


def _taken(path: Path) -> FileError:
    return FileError(f"{path} exists already; name a new file")

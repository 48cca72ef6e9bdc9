"""Removal of a job's files through descriptors, so that no link is followed, at any depth."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from agent.shim.system import syscalls

SLICE_S: Final = 20.0
_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOUNTED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(name: str, above: int, seconds: float = SLICE_S) -> None:
    """Remove the directory `name` in the open directory `above`. Does nothing if it does not exist.

    Subdirectories are moved up and then emptied, so that neither the stack nor the number of open
    files grows with the depth. Mounts inside are unmounted: they cannot be moved, and their content
    is not ours. Raises OSError, also after `seconds`: a job may add entries as fast as they are
    removed, and the next call goes on with the rest.
    """
    until = time.monotonic() + seconds
    try:
        top = os.open(name, _DIR, dir_fd=above)
    except FileNotFoundError:
        return
    # Different from the names of an interrupted removal.
    stem = f".removed-{secrets.token_hex(8)}-"
    names = (f"{stem}{number}" for number in itertools.count())
    try:
        todo = _empty(top, top, stem, names, until)
        while todo:
            folder = todo.pop()
            fd = os.open(folder, _DIR, dir_fd=top)
            try:
                todo += _empty(fd, top, stem, names, until)
            finally:
                os.close(fd)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _empty(fd: int, top: int, stem: str, names: Iterator[str], until: float) -> list[str]:
    """Unlink all files, and move the subdirectories to `top`, made accessible. Returns their
    `names` there, which begin with `stem`.
    """
    folders: list[str] = []
    while _pass(fd, top, stem, names, folders, until):
        pass
    return folders


def _pass(
    fd: int, top: int, stem: str, names: Iterator[str], folders: list[str], until: float
) -> bool:
    """List the directory once and take out what is found. The names are not collected: there may be
    millions. Returns False if there was none, because a listing may miss some during changes.
    """
    found = False
    with os.scandir(fd) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(stem):
                continue
            found = True
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, "its removal takes long, and continues later")
            if not entry.is_dir(follow_symlinks=False):
                _unmounted(name, fd, partial(os.unlink, name, dir_fd=fd))
                continue
            _allow(name, fd)
            there = next(names)
            _unmounted(name, fd, partial(os.rename, name, there, src_dir_fd=fd, dst_dir_fd=top))
            folders.append(there)
    return found


def _unmounted(name: str, above: int, act: Callable[[], None]) -> None:
    """Run `act`, after removing all mounts at `name`."""
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            fd = os.open(name, _MOUNTED, dir_fd=above)
            try:
                syscalls.unmount(fd)
            except OSError:
                # Only root may unmount.
                raise error from None
            finally:
                os.close(fd)


def _allow(name: str, above: int) -> None:
    """Restore access: a job may have removed its own. Root does not need it."""
    if os.geteuid() == 0:
        return
    fd = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)

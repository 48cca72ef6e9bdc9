"""Removing what a job left: by descriptors, so that no link is followed, and however deep it is."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from agent.shim import syscalls

_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOUNTED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(name: str, above: int) -> None:
    """Remove the folder `name` in the open folder `above`; harmless where it is not there.

    Folders inside it are moved up and then emptied, so that neither the stack nor the number of
    open files grows with the depth that a job has chosen. What is mounted in it is taken away as it
    is: it cannot be moved, and what is in it is not ours. Raises OSError.
    """
    try:
        top = os.open(name, _DIR, dir_fd=above)
    except FileNotFoundError:
        return
    # Of no removal that was cut off.
    stem = secrets.token_hex(8)
    names = (f".removed-{stem}-{number}" for number in itertools.count())
    try:
        todo = _empty(top, top, names)
        while todo:
            folder = todo.pop()
            fd = os.open(folder, _DIR, dir_fd=top)
            try:
                todo += _empty(fd, top, names)
            finally:
                os.close(fd)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _empty(fd: int, top: int, names: Iterator[str]) -> list[str]:
    """Unlink all that is no folder, and move the folders to `top`, made so that they can be
    entered; returns their `names` there."""
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = []
    for name, is_folder in found:
        if not is_folder:
            _unmounted(name, fd, partial(os.unlink, name, dir_fd=fd))
            continue
        _allow(name, fd)
        there = next(names)
        _unmounted(name, fd, partial(os.rename, name, there, src_dir_fd=fd, dst_dir_fd=top))
        folders.append(there)
    return folders


def _unmounted(name: str, above: int, act: Callable[[], None]) -> None:
    """Do it; whatever is mounted at `name` is in the way, be it several times."""
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
                # Only root may.
                raise error from None
            finally:
                os.close(fd)


def _allow(name: str, above: int) -> None:
    """A job may have taken away its own right to enter; root needs none."""
    if os.geteuid() == 0:
        return
    fd = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)

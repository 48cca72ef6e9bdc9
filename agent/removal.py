"""Removing what a job left: by descriptors, so that no link is followed, and however deep it is."""

from __future__ import annotations

import os
from typing import Final

_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(name: str, above: int) -> None:
    """Remove the folder `name` in the open folder `above`; harmless where it is not there.

    Folders inside it are moved up and then emptied, so that neither the stack nor the number of
    open files grows with the depth that a job has chosen. Raises OSError.
    """
    try:
        top = os.open(name, _DIR, dir_fd=above)
    except FileNotFoundError:
        return
    try:
        moved = 0
        todo = _unlink_files(top)
        while todo:
            folder = todo.pop()
            fd = os.open(folder, _DIR, dir_fd=top)
            try:
                for inner in _unlink_files(fd):
                    moved += 1
                    lifted = f".removed-{moved}"
                    os.rename(inner, lifted, src_dir_fd=fd, dst_dir_fd=top)
                    todo.append(lifted)
            finally:
                os.close(fd)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _unlink_files(fd: int) -> list[str]:
    """Unlink all that is no folder; returns the folders, made so that they can be entered."""
    folders = []
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=fd)
            continue
        _allow(name, fd)
        folders.append(name)
    return folders


def _allow(name: str, above: int) -> None:
    """A job may have taken away its own right to enter; root needs none."""
    if os.geteuid() == 0:
        return
    fd = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)

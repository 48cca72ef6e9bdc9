"""Files that a shim writes into its task directory, read without following a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agent.shim import exit_record

T = TypeVar("T")


RECORD_BYTES_MAX = 64 * 1024 * 1024


FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class ShimIdentity(msgspec.Struct, frozen=True):
    """Identity that a shim wrote at its start."""

    task: str
    pid: int
    boot_id: str
    mark: str
    start_time: int | None = None
    cgroup: str | None = None


decode_identity: Final = msgspec.json.Decoder(ShimIdentity).decode


def identity_of(task_dir: Path) -> ShimIdentity | None:
    """Return the identity of a task's shim, or None if it has written none. Raises OSError."""
    folder_fd = os.open(task_dir, FOLDER_FLAGS)
    try:
        return read_document(folder_fd, exit_record.IDENTITY, decode_identity)
    finally:
        os.close(folder_fd)


def read_document(folder_fd: int, name: str, decoded: Callable[[bytes], T]) -> T | None:
    """Return a record, or None if there is no complete one."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            # Limit the size, because memory for all of it is allocated before the first byte is
            # read.
            size = min(os.fstat(fd).st_size, RECORD_BYTES_MAX)
            return decoded(file.read(size))
        except (msgspec.DecodeError, ValueError):
            return None

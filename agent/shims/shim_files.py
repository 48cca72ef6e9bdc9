"""The files that a shim writes into the folder of its task, read without following a link."""

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
    """What a shim wrote of itself when it began."""

    task: str
    pid: int
    boot_id: str
    mark: str
    start_time: int | None = None
    cgroup: str | None = None


decode_identity: Final = msgspec.json.Decoder(ShimIdentity).decode


def identity_of(task_dir: Path) -> ShimIdentity | None:
    """What the shim of a task wrote, None where it has not. Raises OSError."""
    folder_fd = os.open(task_dir, FOLDER_FLAGS)
    try:
        return read_document(folder_fd, exit_record.IDENTITY, decode_identity)
    finally:
        os.close(folder_fd)


def read_document(folder_fd: int, name: str, decoded: Callable[[bytes], T]) -> T | None:
    """A record, or None where there is none that was finished."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            # Never more than that: memory for all of it is taken before the first byte is read.
            size = min(os.fstat(fd).st_size, RECORD_BYTES_MAX)
            return decoded(file.read(size))
        except (msgspec.DecodeError, ValueError):
            return None

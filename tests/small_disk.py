"""A disk that is small enough to be filled, for tests that may mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int, inodes: int = 0) -> Iterator[Path]:
    """A file system of `size` bytes at `folder`, with that many inodes if any are given. Skips
    where none can be mounted."""
    folder.mkdir()
    options = f"size={size}" + (f",nr_inodes={inodes}" if inodes else "")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def disk_that_freezes(folder: Path, size: int) -> Iterator[Path]:
    """An ext4 of `size` bytes at `folder`, for `frozen`. Skips where none can be mounted."""
    folder.mkdir()
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    for command in (
        ["mkfs.ext4", "-q", "-F", str(image)],
        ["mount", "-o", "loop", str(image), str(folder)],
    ):
        try:
            subprocess.run(command, capture_output=True, check=True, text=True)
        except FileNotFoundError as error:
            pytest.skip(f"no file system can be made here: {error}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"nothing can be mounted here: {error.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Nothing can be written to the disk meanwhile: writers wait."""
    subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)


def fill(folder: Path, name: str = "filler") -> Path:
    """Take all the room there is, to the last byte; returns the file that has it."""
    file = folder / name
    with file.open("ab", buffering=0) as out:
        for piece in (1 << 20, 4096, 1):
            try:
                while True:
                    out.write(b"x" * piece)
            except OSError:
                continue
    return file

"""Folders of the log store: syncing, marking, listing and removing.

Every function here waits for a disk.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from muster.daemon.durable_files import sync_directory
from muster.protocol.ids import JobId, is_job_id
from orchestrator.journal.backup import SILENT_NAME
from orchestrator.shell.logs.index import index_path
from orchestrator.shell.logs.stream_file import LogStoreError, allocated
from orchestrator.shell.logs.tombstone import is_mark


def sync_files(files: Iterable[Path], folders: Iterable[Path]) -> dict[Path, str]:
    """Sync streams, their indexes and their folders to disk.

    Return why the ones that could not be synced were not, by the path of the stream or folder.
    """
    failures: dict[Path, str] = {}
    # Opened again, so that the loop may close a stream while this thread syncs it.
    for path in files:
        for name in (path, index_path(path)):
            try:
                _sync_data(name)
            except OSError as error:
                failures[path] = f"{name.name} cannot be put on disk: {error.strerror}"
    for folder in folders:
        try:
            if folder.exists():  # it may have been removed since
                sync_directory(folder)
        except OSError as error:
            failures[folder] = f"{folder} cannot be put on disk: {error.strerror}"
    return failures


def _sync_data(path: Path) -> None:
    """Sync the bytes of a file, if it exists. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def remove_all_but_mark(root: Path) -> None:
    """Remove everything but the removal mark from a job's folder. Raises OSError."""
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif not is_mark(entry.name):
            os.unlink(entry.path)
    sync_directory(root)


def note_silent(folder: Path, node_rank: int) -> None:
    """Record that a task has written no output. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    path = f"{folder}/{SILENT_NAME}"
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, flags, 0o600)
    try:
        os.write(fd, b"%d\n" % node_rank)
    finally:
        os.close(fd)


def silent_ranks(folder: Path) -> list[int]:
    """Return the node ranks of tasks without output. A torn line after a power cut is ignored."""
    try:
        text = (folder / SILENT_NAME).read_bytes()
    except FileNotFoundError:
        return []
    return [int(line) for line in text.split(b"\n")[:-1] if line.isdigit()]


def numbered(folder: Path) -> list[int]:
    """Return the numbers that name subfolders, sorted."""
    try:
        return sorted(int(e.name) for e in os.scandir(folder) if e.name.isdecimal() and e.is_dir())
    except FileNotFoundError:
        return []


def present_jobs(root: Path) -> list[JobId]:
    """Return the jobs that have a folder. Other names are ignored. Raises LogStoreError."""
    try:
        with os.scandir(root) as entries:
            return [JobId(int(entry.name)) for entry in entries if is_job_id(entry.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogStoreError(f"{root} cannot be read: {error.strerror}") from error


def bytes_below(folder: Path) -> int:
    """Return the bytes on disk of the streams and indexes below a folder.

    Files that vanish during the walk count 0.
    """
    return sum(
        allocated(os.path.join(above, name))
        for above, _, files in os.walk(folder)
        for name in files
        if not is_mark(name) and name != SILENT_NAME
    )


def files_below(folder: Path) -> int:
    """Return the number of files and folders below a folder."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))

"""Content of bundles on this node: chunks and manifests by their SHA-256, in a folder of the agent.

A task never works on these files: it gets a copy of its own (`copy`), so that no job can change
what another one starts with.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog

from agent.taskdirs.taskdirs import RESERVE_BYTES, DiskFullError, Owner
from muster.bundle.manifest import CHUNK_BYTES, BadManifestError, CodeManifest, File, decode, digest
from muster.daemon.errors import FileError

_CHUNKS: Final = "chunks"
_MANIFESTS: Final = "manifests"
_NEW: Final = ".new-"
_FICLONERANGE: Final = 0x4020940D
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEEP_S: Final = 14 * 86400.0
BYTES_MAX: Final = 32 << 30
"""Bytes of all chunks and manifests that this node keeps."""

_log = structlog.get_logger("agent.code")


class DamagedError(FileError):
    """Content on this node's disk that is not what its name says. It has been removed."""

    def __init__(self, chunk: str) -> None:
        super().__init__(f"chunk {chunk} is damaged on this node's disk")
        self.chunk = chunk


class CodeStore:
    """The content in one folder. The methods wait for the disk: call them from a thread."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._clones = True  # until the file system shows that it cannot share blocks

    def prepare(self) -> None:
        """Create what is missing, and remove what an interrupted fetch left. Raises FileError."""
        with _explained(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for name in (_CHUNKS, _MANIFESTS):
                (self._folder / name).mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.glob(f"*/{_NEW}*"):
                path.unlink(missing_ok=True)
            for path in self._folder.glob(f"{_CHUNKS}/??/{_NEW}*"):
                path.unlink(missing_ok=True)

    def manifest(self, sha256: str) -> CodeManifest | None:
        """Return a manifest that is here and undamaged, else None."""
        try:
            data = (self._folder / _MANIFESTS / sha256).read_bytes()
            return decode(data) if digest(data) == sha256 else None
        except (OSError, BadManifestError):
            return None

    def keep_manifest(self, sha256: str, data: bytes) -> CodeManifest:
        """Verify and keep a manifest. Raises BadManifestError and FileError."""
        if digest(data) != sha256:
            raise BadManifestError("the manifest is not what its name says")
        manifest = decode(data)
        self._keep(self._folder / _MANIFESTS / sha256, data)
        return manifest

    def missing(self, manifest: CodeManifest) -> dict[str, int]:
        """Return the chunks that are not here, with their sizes."""
        here: dict[str, set[str]] = {}

        def is_here(chunk: str) -> bool:
            names = here.get(chunk[:2])
            if names is None:
                try:
                    names = set(os.listdir(self._folder / _CHUNKS / chunk[:2]))
                except OSError:
                    names = set()
                here[chunk[:2]] = names
            return chunk in names

        return {chunk: size for chunk, size in manifest.chunks().items() if not is_here(chunk)}

    def keep(self, chunks: Iterable[tuple[str, memoryview]]) -> set[str]:
        """Keep verified chunks, and return their names. Raises FileError."""
        kept = set()
        for chunk, content in chunks:
            self._keep(self._path(chunk), content)
            kept.add(chunk)
        return kept

    def read(self, chunks: Iterable[str], bytes_max: int) -> list[tuple[str, bytes]]:
        """Return those of `chunks` that are here, verified, of `bytes_max` bytes at most unless it
        is one."""
        found: list[tuple[str, bytes]] = []
        for chunk in chunks:
            try:
                data = self._path(chunk).read_bytes()
            except OSError:
                continue
            if digest(data) == chunk:
                bytes_max -= len(data)
                if found and bytes_max < 0:
                    break
                found.append((chunk, data))
        return found

    def drop_damaged(self, manifest: CodeManifest) -> int:
        """Remove the chunks of a manifest that are damaged, and return their number."""
        damaged = 0
        for chunk, size in manifest.chunks().items():
            path = self._path(chunk)
            with _explained(path), contextlib.suppress(FileNotFoundError):
                if path.stat().st_size != size or digest(path.read_bytes()) != chunk:
                    path.unlink()
                    damaged += 1
        return damaged

    def copy(
        self,
        manifest: CodeManifest,
        folder: Path,
        owner: Owner | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the tree in an empty folder that no other user can enter yet, every byte verified.
        Raises DamagedError, FileError, also once `stopped`, and DiskFullError."""
        with _explained(folder):
            _check_room(folder, manifest.size)
            made = {""}
            for path in sorted(manifest.paths()):
                _make_folders(folder, path.rpartition("/")[0], made, owner)
            for file in manifest.files:
                if stopped():
                    raise FileError("the code of the job is not copied: the agent is being stopped")
                self._copy_file(file, folder / file.path, owner)
            for link in manifest.links:
                at = folder / link.path
                os.symlink(link.target, at)
                if owner is not None:
                    os.lchown(at, owner.uid, owner.gid)
            if owner is not None:
                os.chown(folder, owner.uid, owner.gid)

    def clean(self, pinned: Collection[str], now: float) -> int:
        """Remove the content that was used least recently, beyond the age and size limits. `pinned`
        are chunks of tasks that are being prepared. Returns the number removed."""
        found = []
        paths = (
            *(self._folder / _CHUNKS).glob("??/*"),
            *(self._folder / _MANIFESTS).iterdir(),
        )
        for path in paths:
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        found.sort(reverse=True)
        total = removed = 0
        for used, size, path in found:
            total += size
            if (now - used > _KEEP_S or total > self._bytes_max) and path.name not in pinned:
                path.unlink(missing_ok=True)
                removed += 1
        if removed:
            _log.info("code_cleaned", files=removed)
        return removed

    def _copy_file(self, file: File, at: Path, owner: Owner | None) -> None:
        fd = os.open(at, _WRITE, 0o600)
        try:
            for number, (chunk, size) in enumerate(file.sizes()):
                self._copy_chunk(chunk, size, fd, number * CHUNK_BYTES)
            if owner is not None:
                os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, 0o755 if file.executable else 0o644)
        finally:
            os.close(fd)

    def _copy_chunk(self, chunk: str, size: int, fd: int, offset: int) -> None:
        path = self._path(chunk)
        try:
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedError(chunk) from None
        try:
            data = memoryview(os.pread(source, size + 1, 0))
            if len(data) != size or digest(data) != chunk:
                path.unlink(missing_ok=True)
                raise DamagedError(chunk)
            os.utime(source)
            if self._clone(source, size, fd, offset):
                return
        finally:
            os.close(source)
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written

    def _clone(self, source: int, size: int, fd: int, offset: int) -> bool:
        """Share the blocks of a chunk with the copy, where the file system can. Each side keeps its
        own content when the other is changed."""
        if not self._clones:
            return False
        try:
            fcntl.ioctl(fd, _FICLONERANGE, struct.pack("qQQQ", source, 0, size, offset))
        except OSError:
            self._clones = False
            return False
        return True

    def _keep(self, path: Path, content: bytes | memoryview) -> None:
        with _explained(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            new = path.with_name(f"{_NEW}{secrets.token_hex(8)}")
            try:
                with open(os.open(new, _WRITE, 0o600), "wb", buffering=0) as file:
                    left = memoryview(content)
                    while left:
                        left = left[file.write(left) :]
                os.replace(new, path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def _path(self, chunk: str) -> Path:
        return self._folder / _CHUNKS / chunk[:2] / chunk


def _check_room(folder: Path, size: int) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < size + RESERVE_BYTES:
        raise DiskFullError(
            f"the code of the job is {size >> 20} MiB, and the disk of {folder} has {free >> 20} "
            f"MiB, of which {RESERVE_BYTES >> 20} MiB stay free; make room, or move the agent's "
            "`state_dir`"
        )


def _make_folders(root: Path, path: str, made: set[str], owner: Owner | None) -> None:
    if path in made:
        return
    _make_folders(root, path.rpartition("/")[0], made, owner)
    made.add(path)
    at = root / path
    at.mkdir(mode=0o700)
    at.chmod(stat.S_IRWXU | 0o055)
    if owner is not None:
        os.chown(at, owner.uid, owner.gid)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a FileError, or DiskFullError."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (DiskFullError if full else FileError)(
            f"the code of the job cannot be written to {path}: {error.strerror}"
        ) from error

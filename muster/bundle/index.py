"""Index of a folder's content, as git has one: files that have not changed are not read again."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

RACY_NS: Final = 2_000_000_000
"""A file changed so shortly before it was read may change again without a new time stamp."""
_VERSION: Final = 3

Entry: TypeAlias = tuple[int, int, int, int, tuple[str, ...]]
"""Inode, size, modification and change time (nanoseconds), and the chunks."""


class _Stored(msgspec.Struct, array_like=True):
    version: int
    folder: bytes
    checked: str
    entries: dict[str, Entry]


class Index:
    """The index of one folder. Without a usable file it is empty."""

    def __init__(self, cache: Path, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._folder = os.fsencode(folder)  # perhaps not UTF-8
        self._path = cache / f"{name}.index"
        self._entries: dict[str, Entry] = {}
        self.checked = ""
        """The hash of the last manifest of this folder that was checked."""
        self.now_ns = 0
        try:
            stored = msgspec.msgpack.decode(self._path.read_bytes(), type=_Stored)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return
        if stored.version == _VERSION and stored.folder == self._folder:
            self._entries, self.checked = stored.entries, stored.checked

    def begin(self) -> None:
        """Note the time before any file is read, by the clock of a file system."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._path.with_name(f"{self._path.name}.{os.urandom(4).hex()}")
            probe.touch(mode=0o600)
            self.now_ns = probe.stat().st_mtime_ns
            probe.unlink()

    def __contains__(self, path: str) -> bool:
        """True if the last scan had a file of this name."""
        return path in self._entries

    def chunks(self, path: str, found: os.stat_result) -> tuple[str, ...] | None:
        """Return the chunks of a file that has not changed, else None."""
        entry = self._entries.get(path)
        if (
            entry is None
            or entry[0] != found.st_ino
            or entry[1] != found.st_size
            or entry[2] != found.st_mtime_ns
            or entry[3] != found.st_ctime_ns
        ):
            return None
        return entry[4]

    def save(self, read: Mapping[str, tuple[os.stat_result, tuple[str, ...]]], sha: str) -> None:
        """Replace the index. Files that have changed just now stay out. `sha` names the manifest,
        which was checked. Best effort."""
        before = self.now_ns - RACY_NS
        entries = {
            path: (*_key(found), chunks)
            for path, (found, chunks) in read.items()
            if max(found.st_mtime_ns, found.st_ctime_ns) < before
        }
        data = msgspec.msgpack.encode(_Stored(_VERSION, self._folder, sha, entries))
        new = self._path.with_name(f"{self._path.name}.{os.urandom(4).hex()}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.replace(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()


def _key(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of all indexes."""
    base = environ.get("XDG_CACHE_HOME", "")
    root = (
        Path(base)
        if os.path.isabs(base)
        else Path(environ.get("HOME") or "~").expanduser() / ".cache"
    )
    return root / "muster" / "code"

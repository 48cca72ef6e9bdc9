"""Scan of a folder into a manifest."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from muster.bundle.ignore import FILES, IgnoreRules, Origin, ignoring
from muster.bundle.index import Index
from muster.bundle.manifest import (
    CHUNK_BYTES,
    FILES_MAX,
    BadManifestError,
    CodeManifest,
    File,
    TreeLink,
    check,
    digest,
    encode,
    link_problem,
    path_problem,
)

_THREADS: Final = min(4, os.cpu_count() or 1)
_RULES_BYTES_MAX: Final = 1 << 20
_EXCLUDE: Final = ".git/info/exclude"
_NAMED: Final = 10


class ScanError(Exception):
    """A folder that cannot travel; the text is for users, `hint` says what to do."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class Scanned(NamedTuple):
    """A folder as it was at the scan."""

    folder: Path
    manifest: CodeManifest
    data: bytes
    ignored: dict[str, Origin]

    @property
    def sha256(self) -> str:
        """The name of the bundle."""
        return digest(self.data)


class _Found(NamedTuple):
    files: list[tuple[str, os.stat_result]]
    links: list[TreeLink]
    ignored: dict[str, Origin]


def scan(folder: Path, cache: Path) -> Scanned:
    """Read a folder. Files that have not changed since the last scan are not read again. Raises
    ScanError."""
    try:
        found = _walk(folder)
    except OSError as error:
        raise ScanError(f"{error.filename} cannot be read: {error.strerror}") from error
    index = Index(cache, folder)
    index.begin()
    read: dict[str, tuple[os.stat_result, tuple[str, ...]]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        pending = []
        for path, status in found.files:
            chunks = index.chunks(path, status)
            if chunks is None:
                pending.append((path, threads.submit(_read, folder, path)))
            else:
                read[path] = status, chunks
        for path, reading in pending:
            try:
                read[path] = reading.result()
            except OSError as error:
                raise ScanError(f"{path} cannot be read: {error.strerror}") from error
    files = tuple(
        File(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), chunks)
        for path, (status, chunks) in read.items()
    )
    manifest = CodeManifest(files, tuple(found.links))
    scanned = Scanned(folder, manifest, encode(manifest), found.ignored)
    if pending or index.checked != scanned.sha256:
        # Otherwise nothing differs from the last scan, which checked and saved the same.
        try:
            check(manifest)
        except BadManifestError as error:
            raise ScanError(f"{folder} cannot travel: {error}", _HINT) from error
        index.save(read, scanned.sha256)
    return scanned


_HINT: Final = "rename or remove it, or name it in a .musterignore file, written as a .gitignore is"


def too_large(why: str, sizes: Iterable[tuple[str, int]]) -> ScanError:
    """Return the refusal of a folder, with its ten largest files."""
    largest = sorted(sizes, key=lambda each: -each[1])[:_NAMED]
    listed = "".join(f"\n  {size_text(size):>9}  {path}" for path, size in largest)
    return ScanError(
        f"{why}; the largest files:{listed}",
        "name data and checkpoints in a .musterignore file, and keep them on storage that the "
        "nodes mount",
    )


def size_text(size: int) -> str:
    """Return a size for people."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or unit == "GB":
            break
    return f"{value:.1f} {unit}"


def _walk(folder: Path) -> _Found:
    """Find everything that is not ignored, directory by directory."""
    found = _Found([], [], {})
    rules = _rules_above(folder)
    waiting: list[tuple[str, tuple[IgnoreRules, ...]]] = [("", rules)]
    while waiting:
        base, above = waiting.pop()
        with os.scandir(folder / base if base else folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        texts = [(f"{base}{name}", _text(folder / base / name)) for name in FILES if name in names]
        inner = (IgnoreRules(base, texts), *above) if any(text for _, text in texts) else above
        for entry in entries:
            if entry.name == ".git":
                continue
            path = f"{base}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            origin = ignoring(inner, path, entry.name, directory=is_folder)
            if origin is not None:
                found.ignored[f"{path}/" if is_folder else path] = origin
            elif is_folder:
                waiting.append((f"{path}/", inner))
            else:
                _take(entry, path, found)
        if len(found.files) + len(found.links) > FILES_MAX:
            raise ScanError(
                f"{folder} has more than {FILES_MAX} files",
                "name what the job does not need in a .musterignore file",
            )
    return found


def _take(entry: os.DirEntry[str], path: str, found: _Found) -> None:
    if not path.isascii() and (why := path_problem(path)):
        raise ScanError(f"the name {path!r} {why}", _HINT)
    if entry.is_symlink():
        target = os.readlink(entry.path)
        if why := link_problem(path, target):
            raise ScanError(
                f"the link {path} {why}, which the nodes do not have",
                "name it in a .musterignore file, or use the absolute path in the job",
            )
        found.links.append(TreeLink(path, target))
        return
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise ScanError(f"{path} is a socket, a pipe or a device", _HINT)
    found.files.append((path, status))


def _rules_above(folder: Path) -> tuple[IgnoreRules, ...]:
    """Return the rules of the repository's directories above `folder`, the nearest first."""
    root = next((at for at in (folder, *folder.parents) if (at / ".git").exists()), None)
    if root is None:
        return ()
    rules: list[IgnoreRules] = []
    above, base = folder, ""
    while above != root:
        # Paths from a directory above begin with the names of those between.
        base = f"{above.name}/{base}"
        above = above.parent
        texts = [(str(above / name), _text(above / name)) for name in FILES]
        rules.append(_Shifted(base, texts))
    rules.append(_Shifted(base, [(_EXCLUDE, _text(root / _EXCLUDE))]))
    return tuple(rules)


class _Shifted(IgnoreRules):
    """The rules of a directory above the folder: paths get the names of the directories between."""

    def __init__(self, between: str, texts: list[tuple[str, str]]) -> None:
        super().__init__("", texts)
        self._between = between

    def decide(self, path: str, name: str, *, directory: bool) -> tuple[bool, Origin] | None:
        """Decide about a path of the folder."""
        return super().decide(self._between + path, name, directory=directory)


def _text(path: Path) -> str:
    """Return a file of rules, a character for each byte; empty if it is not a regular file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(_RULES_BYTES_MAX).decode("latin-1")
    except OSError:
        return ""


def _read(folder: Path, path: str) -> tuple[os.stat_result, tuple[str, ...]]:
    """Hash a file, twice at most: its size and times must not change while it is read."""
    for _ in range(2):
        fd = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb", buffering=0) as file:
            before = os.fstat(fd)
            chunks = tuple(digest(data) for data in _chunks(file.fileno()))
            after = os.fstat(fd)
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if same and len(chunks) == -(-after.st_size // CHUNK_BYTES):
            return after, chunks
    raise ScanError(f"{path} changes while it is read", "submit again once it is complete")


def _chunks(fd: int) -> Iterator[bytes]:
    """Yield the chunks of an open file, each whole but the last."""
    while True:
        parts: list[bytes] = []
        room = CHUNK_BYTES
        while room and (data := os.read(fd, room)):
            parts.append(data)
            room -= len(data)
        if not parts:
            return
        yield parts[0] if len(parts) == 1 else b"".join(parts)
        if room:
            return


def read_chunk(folder: Path, path: str, number: int) -> bytes:
    """Return one chunk of a file. Raises OSError."""
    fd = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(fd, CHUNK_BYTES, number * CHUNK_BYTES)
    finally:
        os.close(fd)

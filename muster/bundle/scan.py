"""Scan of a folder into a manifest."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

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
_AT_ONCE: Final = 64
_FEW_BYTES: Final = 4 << 20
_RULES_BYTES_MAX: Final = 1 << 20
_EXCLUDE: Final = ".git/info/exclude"
_NAMED: Final = 10
# Not to wait for the writer of a pipe that has taken the place of a file.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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


_Content: TypeAlias = tuple[os.stat_result, tuple[str, ...]]
"""A file as it was read, and its chunks."""


class _Found(NamedTuple):
    files: list[tuple[str, os.stat_result]]
    links: list[TreeLink]
    ignored: dict[str, Origin]


def scan(
    folder: Path,
    cache: Path,
    *,
    bytes_max: int = 0,
    files_max: int = FILES_MAX,
    show: Callable[[int, int], None] = lambda _done, _total: None,
) -> Scanned:
    """Read a folder. Files that have not changed since the last scan are not read again; `show`
    gets the bytes read and to read. Raises ScanError, for more than `bytes_max` (0: no limit) or
    `files_max` before anything is read."""
    try:
        found = _walk(folder, files_max)
    except OSError as error:
        raise ScanError(f"{error.filename} cannot be read: {error.strerror}") from error
    size = sum(status.st_size for _, status in found.files)
    if bytes_max and size > bytes_max:
        why = f"the code is {size} bytes, and at most {bytes_max} may travel with a job"
        raise too_large(why, ((path, status.st_size) for path, status in found.files))
    index = Index(cache, folder)
    index.begin()
    read: dict[str, _Content] = {}
    pending: list[str] = []
    left = 0
    for path, status in found.files:
        chunks = index.chunks(path, status)
        if chunks is None:
            pending.append(path)
            left += status.st_size
        else:
            read[path] = status, chunks
    for contents in _read_all(folder, pending, left):
        read.update(contents)
        show(size - left, size)
        left -= sum(status.st_size for status, _ in contents.values())
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


def _no_file(path: str) -> ScanError:
    return ScanError(f"{path} is a socket, a pipe or a device", _HINT)


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


def _too_many(folder: Path, found: _Found, files_max: int) -> ScanError:
    """Return the refusal of a folder with too many files, with the ten folders that have most."""
    paths = [path for path, _ in found.files]
    holding = Counter(path.rpartition("/")[0] or "." for path in paths).most_common(_NAMED)
    listed = "".join(f"\n  {number:>9}  {path}" for path, number in holding)
    return ScanError(
        f"{folder} has more than {files_max} files; the folders with most:{listed}",
        "name what the job does not need in a .musterignore file",
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


def _walk(folder: Path, files_max: int) -> _Found:
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
        if len(found.files) + len(found.links) > files_max:
            raise _too_many(folder, found, files_max)
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
        raise _no_file(path)
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


def _read_all(folder: Path, paths: list[str], size: int) -> Iterator[dict[str, _Content]]:
    """Read files, some at a time; many in threads, because hashing lets others run."""

    def read_some(at: int) -> dict[str, _Content]:
        return {path: _read(folder, path) for path in paths[at : at + _AT_ONCE]}

    starts = range(0, len(paths), _AT_ONCE)
    if size < _FEW_BYTES:
        yield from map(read_some, starts)
        return
    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(_THREADS)
    try:
        yield from threads.map(read_some, starts)
    finally:
        threads.shutdown(cancel_futures=True)


def _read(folder: Path, path: str) -> _Content:
    """Hash a file, twice at most: its size and times must not change while it is read."""
    for _ in range(2):
        try:
            fd = os.open(folder / path, _READ)
            try:
                before = os.fstat(fd)
                if not stat.S_ISREG(before.st_mode):
                    raise _no_file(path)
                size = before.st_size
                chunks = tuple(
                    digest(_read_at(fd, at, min(CHUNK_BYTES, size - at)))
                    for at in range(0, size, CHUNK_BYTES)
                )
                after = os.fstat(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise ScanError(f"{path} cannot be read: {error.strerror}") from error
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return after, chunks
    raise ScanError(f"{path} changes while it is read", "submit again once it is complete")


def _read_at(fd: int, at: int, size: int) -> bytes:
    """Return `size` bytes from `at` on, less at the end of the file. A larger buffer than needed
    would cost more than the read."""
    data = os.pread(fd, size, at)
    while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
        data += more
    return data


def read_chunk(folder: Path, path: str, number: int, size: int) -> bytes:
    """Return one chunk of a file, less if the file has become shorter. Raises OSError."""
    fd = os.open(folder / path, _READ)
    try:
        return _read_at(fd, number * CHUNK_BYTES, size)
    finally:
        os.close(fd)

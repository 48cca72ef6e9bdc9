"""Scan of a folder into a manifest."""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from muster.bundle.ignore import FILES, IgnoreRules, Origin, ignoring
from muster.bundle.index import Index
from muster.bundle.manifest import (
    CHUNK_BYTES,
    FILES_MAX,
    MANIFEST_BYTES_MAX,
    BadManifestError,
    CodeManifest,
    File,
    TreeLink,
    check_names,
    digest,
    encode,
    encoded_at_most,
    encoded_size,
    link_problem,
    path_problem,
)
from muster.bundle.pack import PACK_BYTES, PackBuffer

_THREADS: Final = min(4, os.cpu_count() or 1)
_AT_ONCE: Final = 2000
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
    """A folder as it was at the scan. `sha256` is the name of its bundle, `before` that of the scan
    before, if there was one: that bundle has all chunks but those in `fresh`."""

    folder: Path
    manifest: CodeManifest
    data: bytes
    ignored: dict[str, Origin]
    sha256: str
    before: str = ""
    fresh: frozenset[str] = frozenset()


_Content: TypeAlias = tuple[os.stat_result, tuple[str, ...]]
"""A file as it was read, and its chunks."""


Take: TypeAlias = Callable[[PackBuffer], None]
"""Gets a pack of chunks, and may use it until it returns."""


class Listing(NamedTuple):
    """The part of a folder that travels, before any file is read."""

    folder: Path
    files: list[tuple[str, os.stat_result]]
    links: list[TreeLink]
    ignored: dict[str, Origin]

    @property
    def size(self) -> int:
        """Sum of the sizes of the files."""
        return sum(status.st_size for _, status in self.files)

    def sizes(self) -> list[tuple[str, int]]:
        """Each file with its size."""
        return [(path, status.st_size) for path, status in self.files]

    def paths(self) -> set[str]:
        """The paths of files and links."""
        return {path for path, _ in self.files}.union(link.path for link in self.links)


def listing(folder: Path, *, bytes_max: int = 0, files_max: int = FILES_MAX) -> Listing:
    """Find what of a folder travels. Raises ScanError, also for more than `bytes_max` (0: no limit)
    or `files_max`."""
    try:
        found = _walk(folder, files_max)
    except OSError as error:
        raise ScanError(f"{error.filename} cannot be read: {error.strerror}") from error
    size = found.size
    if bytes_max and size > bytes_max:
        why = f"the code is {size} bytes, and at most {bytes_max} may travel with a job"
        raise too_large(why, found.sizes())
    if _is_long(found, size):
        why = f"the list of its files is larger than {size_text(MANIFEST_BYTES_MAX)}"
        raise _too_many(found, f"{folder} cannot travel: {why}")
    return found


def _is_long(found: Listing, size: int) -> bool:
    """True if the manifest would be too large."""
    texts = sum(len(path) for path, _ in found.files)
    texts += sum(len(link.path) + len(link.target) for link in found.links)
    if encoded_at_most(texts, len(found.files) + len(found.links), size) <= MANIFEST_BYTES_MAX:
        return False  # as usual, at little cost
    files = ((path, status.st_size, _is_executable(status)) for path, status in found.files)
    return encoded_size(files, found.links) > MANIFEST_BYTES_MAX


def scan(
    folder: Path,
    cache: Path,
    *,
    bytes_max: int = 0,
    files_max: int = FILES_MAX,
    show: Callable[[int, int], None] = lambda _done, _total: None,
) -> Scanned:
    """Find and read what of a folder travels. Raises ScanError."""
    return read(listing(folder, bytes_max=bytes_max, files_max=files_max), cache, show=show)


def read(
    found: Listing,
    cache: Path,
    *,
    show: Callable[[int, int], None] = lambda _done, _total: None,
    take: Take | None = None,
) -> Scanned:
    """Read the files. Those that have not changed since the last time are not read again; `show`
    gets the bytes read and to read. If much is to be read, `take` gets it at once, in several
    threads. Raises ScanError."""
    folder, size = found.folder, found.size
    index = Index(cache, folder)
    index.begin()
    content: dict[str, _Content] = {}
    pending: list[tuple[str, os.stat_result]] = []
    left = 0
    for path, status in found.files:
        chunks = index.chunks(path, status)
        if chunks is None:
            pending.append((path, status))
            left += status.st_size
        else:
            content[path] = status, chunks
    # Any part of the names that were checked at the last scan can be made, too.
    known = index.checked and not found.links and all(path in index for path, _ in pending)
    if pending and not known:
        _check(found)
    fresh: set[str] = set()
    for some in _read_all(folder, pending, take):
        content.update(some)
        fresh.update(chunk for _, chunks in some.values() for chunk in chunks)
        show(size - left, size)
        left -= sum(status.st_size for status, _ in some.values())
    files = tuple(
        File(path, status.st_size, _is_executable(status), chunks)
        for path, (status, chunks) in content.items()
    )
    manifest = CodeManifest(files, tuple(found.links))
    data, before = encode(manifest), index.checked
    scanned = Scanned(folder, manifest, data, found.ignored, digest(data), before, frozenset(fresh))
    if pending or index.checked != scanned.sha256:
        # Otherwise nothing differs from the last scan, which checked and saved the same.
        if not pending:
            _check(found)
        index.save(content, scanned.sha256)
    return scanned


def _check(found: Listing) -> None:
    """Raise ScanError if no tree with these names can be made on every node."""
    try:
        check_names([path for path, _ in found.files], found.links)
    except BadManifestError as error:
        raise ScanError(f"{found.folder} cannot travel: {error}", _HINT) from error


def _is_executable(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IXUSR)


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


def _too_many(found: Listing, why: str) -> ScanError:
    """Return the refusal of a folder with too many files, with the ten folders that have most."""
    paths = [path for path, _ in found.files]
    holding = Counter(path.rpartition("/")[0] or "." for path in paths).most_common(_NAMED)
    listed = "".join(f"\n  {number:>9}  {path}" for path, number in holding)
    return ScanError(
        f"{why}; the folders with most files:{listed}",
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


def _walk(folder: Path, files_max: int) -> Listing:
    """Find everything that is not ignored, directory by directory."""
    found = Listing(folder, [], [], {})
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
            origin = ignoring(inner, path, entry.name, directory=is_folder) if inner else None
            if origin is not None:
                found.ignored[f"{path}/" if is_folder else path] = origin
            elif is_folder:
                waiting.append((f"{path}/", inner))
            else:
                _take(entry, path, found)
        if len(found.files) + len(found.links) > files_max:
            raise _too_many(found, f"{folder} has more than {files_max} files")
    return found


def _take(entry: os.DirEntry[str], path: str, found: Listing) -> None:
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


class _Taken:
    """Content on its way to `take`, in one thread."""

    def __init__(self, take: Take | None) -> None:
        self._take = take
        # A file that is only hashed needs less memory, of which the kernel clears each page.
        self._pack = PackBuffer(CHUNK_BYTES if take is None else PACK_BYTES)

    def read(self, fd: int, at: int, size: int) -> str:
        """Read a chunk, less at the end of the file, and return its name. It is handed over with
        others."""
        if not self._pack.has_room(size):
            self.end()
        space = self._pack.space(size)
        size = _read_into(fd, at, space)
        name = digest(space[:size])
        if self._take is not None and size:
            self._pack.add(name, size)
        return name

    def end(self) -> None:
        """Hand over what is left."""
        if self._take is not None and self._pack.chunks:
            self._take(self._pack)
        self._pack.clear()


def _read_all(
    folder: Path, files: list[tuple[str, os.stat_result]], take: Take | None
) -> Iterator[dict[str, _Content]]:
    """Read files, some at a time; many in threads, because hashing lets others run."""

    mine = threading.local()

    def read_some(paths: list[str]) -> dict[str, _Content]:
        taken: _Taken | None = getattr(mine, "taken", None)
        if taken is None:
            taken = mine.taken = _Taken(take)
        some = {path: _read(folder, path, taken) for path in paths}
        taken.end()
        return some

    parts = list(_parts(files))
    if sum(status.st_size for _, status in files) < _FEW_BYTES:
        take = None
        yield from map(read_some, parts)
        return
    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(_THREADS)
    try:
        yield from threads.map(read_some, parts)
    finally:
        # A file is read soon, but content may be on a slow way.
        threads.shutdown(wait=take is None, cancel_futures=True)


def _parts(files: list[tuple[str, os.stat_result]]) -> Iterator[list[str]]:
    """Divide files among threads, so that the content of each part is about a pack."""
    part: list[str] = []
    size = 0
    for path, status in files:
        if part and (size + status.st_size > PACK_BYTES or len(part) >= _AT_ONCE):
            yield part
            part, size = [], 0
        part.append(path)
        size += status.st_size
    if part:
        yield part


def _read(folder: Path, path: str, taken: _Taken) -> _Content:
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
                    taken.read(fd, at, min(CHUNK_BYTES, size - at))
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


def _read_into(fd: int, at: int, space: memoryview) -> int:
    """Fill memory from a place in a file on, and return the bytes read, fewer at its end."""
    done = 0
    while done < len(space) and (more := os.preadv(fd, [space[done:]], at + done)):
        done += more
    return done


def read_chunk(folder: Path, path: str, number: int, size: int) -> bytes:
    """Return one chunk of a file, less if the file has become shorter. Raises OSError."""
    fd = os.open(folder / path, _READ)
    try:
        data = bytearray(size)
        return bytes(data[: _read_into(fd, number * CHUNK_BYTES, memoryview(data))])
    finally:
        os.close(fd)

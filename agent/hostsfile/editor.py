"""Changes a file that others change, too, so that no line of theirs is lost.

Whoever renames another file into place, and whoever locks or opens this one and writes, is merged:
the new text and the old file change names in one step; what then comes out is what really was
there, and once nobody writes to it any more, it is compared with what had been read. A file that
somebody goes on writing to is left, or given back, to him. Where names cannot be exchanged (the
file is mounted on, the folder cannot be written) it is written in place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from agent.hostsfile import atomic_exchange
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.hosts_file import merge

LOCK_S: Final = 5.0
"""How long another's lock is waited for."""
QUIET_S: Final = 2.0
"""How long a writer that has the file open is waited for, before the exchange and after it."""
_ROUNDS: Final = 100
_FILE_BYTES_MAX: Final = 16 << 20

HOLD_S: Final = 0.2
"""How long it is waited for, where the file is written in place, that nobody has it open at all."""
AFTERMATH_S: Final = 0.05
"""How long after another writer's change it is looked whether that is still there."""

_TELLING: Final = 8
"""So many bytes of a line show that it is ours."""

_ACCESS: Final = "system.posix_acl_access"

Change = Callable[[bytes], bytes]
_Slip = tuple[bytes, bytes]


class HostsFileError(FileError):
    """The file cannot be changed; the text says why and what to do."""


class HostsFile:
    """One file, which is ours to change a part of; a link stays a link, and what it leads to is
    changed. Its methods wait: call them from one thread."""

    def __init__(self, path: Path, backup: Path) -> None:
        """`backup` keeps what the file was before the last change; a name beside it, what is being
        written in place."""
        self._path = path
        self._backup = backup
        self._writing = backup.with_name(f"{backup.name}.writing")

    def update(self, change: Change) -> None:
        """Let `change` make new text of the present one: several times, if others write meanwhile.

        Raises HostsFileError, and whatever `change` raises; nothing is changed then.
        """
        try:
            self._recover()
            for _ in range(_ROUNDS):
                slipped: list[_Slip] = []
                if not self._changed(change, slipped):
                    continue
                if not slipped:
                    return
                # Between the exchanges the file lacked what had slipped in: whoever read it then
                # and writes what it read takes that away again.
                change = _with_slips(change, slipped)
                time.sleep(AFTERMATH_S)
        except OSError as error:
            if self._is_so(change):
                return
            raise HostsFileError(
                f"{self._path} cannot be changed: {error.strerror}; let the agent write it, or set "
                "`hosts.mode: off` in its configuration"
            ) from error
        raise HostsFileError(f"{self._path} is replaced by others without end; what does that?")

    def _is_so(self, change: Change) -> bool:
        """A file that may only be read is no problem where it need not change."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return False
        return change(text) == text

    # --- one try --------------------------------------------------------------------------------

    def _changed(self, change: Change, slipped: list[_Slip]) -> bool:
        """False where it has to be tried again: the file is another one by now."""
        path = self._real()
        if not path.exists():
            if not change(b""):
                return True
            try:
                _make(path)
            except FileExistsError:
                return False
        quiet = _settled(path) is not None
        with _opened(path) as fd:
            _lock(fd, path)
            if not _is_at(fd, path):
                return False
            text = _read(fd)
            new = change(text)
            if new == text:
                return True
            if not quiet:
                # Most who write a file anew empty it first: what is there is not what will be.
                raise _written_to(path)
            write_atomic(self._backup, text, 0o600)
            exchanged = self._exchange(path, path, self._aside(path), new)
        # Unlocked: whoever waited for the lock of the old file must get it, write and go.
        if exchanged:
            return self._settle(path, text, new, slipped)
        return self._write_in_place(path, change)

    def _settle(self, path: Path, expected: bytes, ours: bytes, slipped: list[_Slip]) -> bool:
        """Where what came out of an exchange is not what had been put there, bring it in again.

        The base is always what was read first: a line that is missing since was taken away only if
        it was there then, and not merely unknown to one who had read an older file.
        """
        aside = self._aside(path)
        base = expected
        while True:
            if not stat.S_ISREG(os.lstat(aside).st_mode):
                # Something that is no file was put there: it is back where it was.
                atomic_exchange.exchange(aside, path)
                aside.unlink()
                return False
            theirs = _settled(aside)
            if theirs is None:
                # What is written must be there when it is whole, whatever becomes of us. Ours is
                # merged at the next change.
                atomic_exchange.exchange(aside, path)
                raise _written_to(path)
            if theirs == expected:
                aside.unlink()
                return True
            slipped.append((base, theirs))
            merged = merge(base, theirs, ours)
            if merged == ours or not self._bring_in(path, base, theirs, merged):
                aside.unlink()
                return True
            expected, ours = ours, merged

    def _bring_in(self, path: Path, base: bytes, theirs: bytes, merged: bytes) -> bool:
        """Put `merged` in place; what lies aside stays on disk until then. False where nothing has
        come out that would have to be looked at."""
        aside = self._aside(path)
        following = self._aside(path, ".next")
        if not self._exchange(path, aside, following, merged):
            self._write_in_place(path, lambda now: merge(base, theirs, now))
            return False
        following.replace(aside)
        return True

    def _exchange(self, path: Path, like: Path, new: Path, text: bytes) -> bool:
        """Put `text` where `path` is, with the attributes of `like`, and what was there where `new`
        is. False where names cannot be exchanged."""
        try:
            if os.stat(path).st_nlink > 1:
                return False
            self._write_like(like, new, text)
            atomic_exchange.exchange(new, path)
        except OSError as error:
            for left in (new, self._aside(path, ".new")):
                with contextlib.suppress(OSError):
                    left.unlink()
            if error.errno == errno.ENOSPC:
                raise
            return False
        return True

    def _recover(self) -> None:
        """An agent that was killed between an exchange and the comparison has left the latter to
        us. Whatever has one of these names is whole."""
        path = self._real()
        self._finish(path)
        aside, following = self._aside(path), self._aside(path, ".next")
        self._aside(path, ".new").unlink(missing_ok=True)
        if not any(map(os.path.lexists, (aside, following))):
            return
        with contextlib.suppress(FileNotFoundError):
            base = self._backup.read_bytes()
            if not os.path.lexists(aside):
                following.replace(aside)
            elif os.path.lexists(following):
                both = merge(base, _left(following, base), _left(aside, base))
                self._write_like(aside, aside, both)
            theirs = _left(aside, base)
            ours = _whole(path)
            merged = merge(base, theirs, ours)
            if merged != ours and self._bring_in(path, base, theirs, merged):
                self._settle(path, ours, merged, [])
        following.unlink(missing_ok=True)
        aside.unlink(missing_ok=True)

    def _write_like(self, old: Path, new: Path, text: bytes) -> None:
        """`new` appears, or is replaced, when all of it is on disk: `_recover` believes it."""
        draft = self._aside(self._real(), ".new")
        draft.unlink(missing_ok=True)
        _write_like(old, draft, text)
        draft.replace(new)

    # --- in place -------------------------------------------------------------------------------

    def _write_in_place(self, path: Path, change: Change) -> bool:
        """Whoever opens the file meanwhile waits, where the file system can have them do so and
        nobody is reading it. False where it has to be tried again."""
        with _opened(path) as fd:
            if atomic_exchange.hold(fd, time.monotonic() + HOLD_S):
                return self._written(fd, path, change)
        # Closed: as long as we have it open for writing ourselves, a reader looks like a writer.
        _whole(path)
        with _opened(path) as fd:
            return self._written(fd, path, change)

    def _written(self, fd: int, path: Path, change: Change) -> bool:
        """Never shorter before everything is where it belongs."""
        _lock(fd, path)
        if not _is_at(fd, path):
            return False
        for _ in range(_ROUNDS):
            text = _read(fd)
            new = change(text)
            if new == text:
                return True
            same = _alike(text, new)
            write_atomic(self._writing, b"%d\n%b%b" % (len(text), text, new), 0o600)
            if os.fstat(fd).st_size != len(text):
                continue
            _write_all(fd, new[same:], same)
            if len(new) < len(text):
                os.ftruncate(fd, len(new))
            os.fsync(fd)
            self._writing.unlink(missing_ok=True)
            return True
        return False

    def _finish(self, path: Path) -> None:
        """Of a write in place that was cut short, the file has the beginning of the new text and
        what followed in the old one; others may have added lines since."""
        try:
            size, _, texts = self._writing.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return
        text, new = texts[: int(size)], texts[int(size) :]
        with contextlib.suppress(FileNotFoundError):
            self._write_in_place(path, lambda now: _finished(text, new, now))
        self._writing.unlink(missing_ok=True)

    def _real(self) -> Path:
        """What links lead to. Asked of the kernel first: of links that lead in a circle each Python
        makes something else."""
        try:
            self._path.stat()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise HostsFileError(
                f"{self._path} is a link that leads to itself: put a file in its place"
            ) from error
        return self._path.resolve()

    def _aside(self, path: Path, more: str = "") -> Path:
        return path.with_name(f".{path.name}.muster{more}")


def _with_slips(change: Change, slipped: list[_Slip]) -> Change:
    def changed(text: bytes) -> bytes:
        for base, theirs in slipped:
            text = merge(base, theirs, text)
        return change(text)

    return changed


def _make(path: Path) -> None:
    """An empty file that everyone may read, whatever the umask. Raises FileExistsError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o644)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened(path: Path, access: int = os.O_RDWR) -> Iterator[int]:
    fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise HostsFileError(f"{path} is no regular file")
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    """Until it is closed. Raises HostsFileError."""
    if not atomic_exchange.lock(fd, time.monotonic() + LOCK_S):
        raise HostsFileError(
            f"{path} has been locked by another process for {LOCK_S:g} s; `lslocks` shows by which"
        )


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > _FILE_BYTES_MAX:
        raise HostsFileError(f"a hosts file of {size} bytes is none that this agent would change")
    found = bytearray()
    while data := os.pread(fd, 1 << 20, len(found)):
        found += data
    return bytes(found)


def _settled(path: Path) -> bytes | None:
    """The text of a file once nobody writes to it any more; None where somebody still does."""
    with _opened(path, os.O_RDONLY) as fd:
        quiet = atomic_exchange.quiet(fd, time.monotonic() + QUIET_S)
        return _read(fd) if quiet else None


def _whole(path: Path) -> bytes:
    """The same; raises HostsFileError where somebody still does."""
    text = _settled(path)
    if text is None:
        raise _written_to(path)
    return text


def _written_to(path: Path) -> HostsFileError:
    return HostsFileError(
        f"{path} has been open for writing in another process for {QUIET_S:g} s; "
        f"`fuser -v {path}` shows in which"
    )


def _left(path: Path, base: bytes) -> bytes:
    """What an earlier exchange has brought out. Nobody wants an empty hosts file: whoever had begun
    to write it anew has died, too. Raises HostsFileError where somebody still writes."""
    return _whole(path) or base


def _write_like(old: Path, new: Path, text: bytes) -> None:
    """A new file with the mode, owner, label and other attributes of an old one."""
    like = os.stat(old)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600)
    try:
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(fd, like.st_uid, like.st_gid)
        kept = _attributes(old)
        if _ACCESS in _attributes(fd) and _ACCESS not in kept:
            # The folder's default: others than before could read or write the file.
            os.removexattr(fd, _ACCESS)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
        for name in kept:
            value = os.getxattr(old, name)
            if name not in _attributes(fd) or os.getxattr(fd, name) != value:
                os.setxattr(fd, name, value)
        _write_all(fd, text, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _attributes(file: Path | int) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def _finished(text: bytes, new: bytes, now: bytes) -> bytes:
    """What becomes of a file that was `text` and should have been `new`, and is `now`."""
    done = _alike(now, new)
    if done <= _alike(text, new) or not now[done:].startswith(text[done:]):
        return now
    since = now[max(done, len(text)) :]
    if since and len(text) <= done < len(text) + _TELLING:
        # Somebody's comment: it begins as ours does, of which nothing may have been written.
        since = now[len(text) :]
    return new + since


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))

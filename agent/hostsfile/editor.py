"""Editor of a file with other writers, which loses none of their lines.

Other writers may rename a file into place, or lock or open this one. Their changes are merged: the
new text and the old file exchange names atomically. The displaced file is the true previous
content; once no process writes to it, it is compared with the content read before. A file that
another process keeps writing to is left or given back to it. If names cannot be exchanged (a mount
point, a read-only directory), the file is written in place.
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

LOCK_S: Final = 1.0
"""Seconds to wait for another process's lock, once a change. Every user can lock the file, so a
longer lock is ignored: the exchange merges what its holder writes.
"""
QUIET_S: Final = 2.0
"""Seconds to wait for a writer that has the file open, before and after the exchange."""
_ROUNDS: Final = 100
_FILE_BYTES_MAX: Final = 16 << 20

HOLD_S: Final = 0.2
"""Seconds to wait until no process has the file open, for a write in place."""
AFTERMATH_S: Final = 0.05
"""Seconds after another writer's change until the editor checks that its own is still there."""

_SAME_BYTES_MIN: Final = 8
"""This many bytes identify a line as ours."""

_ACCESS: Final = "system.posix_acl_access"

Change = Callable[[bytes], bytes]
_Slip = tuple[bytes, bytes]


class HostsFileError(FileError):
    """The file cannot be changed. The message says why and what to do."""


class HostsFile:
    """A file of which a part is ours. If it is a symbolic link, its target is changed. The
    methods block: call them from one thread.
    """

    def __init__(self, path: Path, backup: Path) -> None:
        """`backup` keeps the content before the last change. A file beside it holds a write in
        place.
        """
        self._path = path
        self._backup = backup
        self._writing = backup.with_name(f"{backup.name}.writing")
        self._lock_until = 0.0

    def update(self, change: Change) -> None:
        """Apply `change` to the current text, repeatedly if others write meanwhile.

        Raises HostsFileError and the errors of `change`; nothing is changed then.
        """
        self._lock_until = time.monotonic() + LOCK_S
        try:
            self._recover()
            for _ in range(_ROUNDS):
                slipped: list[_Slip] = []
                if not self._changed(change, slipped):
                    continue
                if not slipped:
                    return
                # Between the exchanges, the file lacked the merged lines. A writer that read it
                # then would remove them again.
                change = _with_slips(change, slipped)
                time.sleep(AFTERMATH_S)
        except OSError as error:
            if self._is_so(change):
                return
            raise HostsFileError(
                f"{self._path} cannot be changed: {error.strerror}; let the agent write it, or set "
                "`hosts.mode: off` in its configuration"
            ) from error
        raise HostsFileError(
            f"{self._path} is replaced by another program again and again; find out which"
        )

    def _is_so(self, change: Change) -> bool:
        """True if the file needs no change. Then a read-only file is no error."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return False
        return change(text) == text

    # --- one attempt ----------------------------------------------------------------------------

    def _changed(self, change: Change, slipped: list[_Slip]) -> bool:
        """Try once. Returns False to try again, because the file is another one by now."""
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
            atomic_exchange.lock(fd, self._lock_until)
            if not _is_at(fd, path):
                return False
            text = _read(fd)
            new = change(text)
            if new == text:
                return True
            if not quiet:
                # Most writers truncate the file first, so what is there now is not the final
                # content.
                raise _written_to(path)
            write_atomic(self._backup, text, 0o600)
            exchanged = self._exchange(path, path, self._aside(path), new)
        # Unlocked, so that a process that waits for the old file's lock can get it, write and
        # finish.
        if exchanged:
            return self._settle(path, text, new, slipped)
        return self._write_in_place(path, change)

    def _settle(self, path: Path, expected: bytes, ours: bytes, slipped: list[_Slip]) -> bool:
        """If the displaced file is not the expected one, merge it back.

        The base is always the first reading: a missing line was deleted only if it was there then.
        Otherwise its writer had merely read an older file.
        """
        aside = self._aside(path)
        base = expected
        while True:
            if not stat.S_ISREG(os.lstat(aside).st_mode):
                # Another process put something there that is no file: put it back.
                atomic_exchange.exchange(aside, path)
                aside.unlink()
                return False
            theirs = _settled(aside)
            if theirs is None:
                # Once the write is complete it must be in place, even if this process dies. Our
                # lines are merged at the next change.
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
        """Put `merged` in place; the displaced file stays on disk until then. Returns False if
        nothing was displaced that needs a comparison.
        """
        aside = self._aside(path)
        following = self._aside(path, ".next")
        if not self._exchange(path, aside, following, merged):
            self._write_in_place(path, lambda now: merge(base, theirs, now))
            return False
        following.replace(aside)
        return True

    def _exchange(self, path: Path, like: Path, new: Path, text: bytes) -> bool:
        """Put `text` at `path` with the attributes of `like`, and the old file at `new`. Returns
        False if names cannot be exchanged.
        """
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
        """Finish the work of an agent that was killed between an exchange and the comparison. A
        file with one of these names is complete.
        """
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
        """Create or replace `new` only when it is complete on disk, because `_recover` relies on
        it.
        """
        draft = self._aside(self._real(), ".new")
        draft.unlink(missing_ok=True)
        _write_like(old, draft, text)
        draft.replace(new)

    # --- in place -------------------------------------------------------------------------------

    def _write_in_place(self, path: Path, change: Change) -> bool:
        """Write in place. Other openers wait, if the file system has leases and no process reads
        the file. Returns False to try again.
        """
        with _opened(path) as fd:
            if atomic_exchange.hold(fd, time.monotonic() + HOLD_S):
                return self._written(fd, path, change)
        # Close our descriptor first: while the file is open for writing, every reader looks like a
        # writer.
        _whole(path)
        with _opened(path) as fd:
            return self._written(fd, path, change)

    def _written(self, fd: int, path: Path, change: Change) -> bool:
        """Write without truncating the file before everything is in place."""
        atomic_exchange.lock(fd, self._lock_until)
        if not _is_at(fd, path):
            return False
        for _ in range(_ROUNDS):
            text = _read(fd)
            new = change(text)
            if new == text:
                return True
            same = _common_prefix(text, new)
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
        """Finish an interrupted write in place. The file has the beginning of the new text and the
        rest of the old one; others may have added lines since.
        """
        try:
            size, _, texts = self._writing.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return
        text, new = texts[: int(size)], texts[int(size) :]
        with contextlib.suppress(FileNotFoundError):
            self._write_in_place(path, lambda now: _finished(text, new, now))
        self._writing.unlink(missing_ok=True)

    def _real(self) -> Path:
        """Return the target of symbolic links. Ask the kernel first, because Python's functions
        differ on circular links.
        """
        try:
            self._path.stat()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise HostsFileError(
                f"{self._path} is a link to itself: replace it by a file"
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
    """Create an empty file that everyone can read, whatever the umask. Raises FileExistsError."""
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
            raise HostsFileError(f"{path} is not a regular file")
        yield fd
    finally:
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > _FILE_BYTES_MAX:
        raise HostsFileError(f"a hosts file of {size} bytes is too large for this agent to change")
    found = bytearray()
    while data := os.pread(fd, 1 << 20, len(found)):
        found += data
    return bytes(found)


def _settled(path: Path) -> bytes | None:
    """Return the text of a file once no process writes to it; None if one still does."""
    with _opened(path, os.O_RDONLY) as fd:
        quiet = atomic_exchange.quiet(fd, time.monotonic() + QUIET_S)
        return _read(fd) if quiet else None


def _whole(path: Path) -> bytes:
    """Return the text of a file. Raises HostsFileError if a process still writes to it."""
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
    """Return the file displaced by an earlier exchange. An empty one is ignored: the process that
    truncated it has died. Raises HostsFileError if a process still writes to it.
    """
    return _whole(path) or base


def _write_like(old: Path, new: Path, text: bytes) -> None:
    """Create a file with the mode, owner, label and other attributes of an old one."""
    like = os.stat(old)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600)
    try:
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(fd, like.st_uid, like.st_gid)
        kept = _attributes(old)
        if _ACCESS in _attributes(fd) and _ACCESS not in kept:
            # The directory's default ACL would let other users read or write the file.
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
    """Return the final content of a file that was `text`, should become `new`, and is `now`."""
    done = _common_prefix(now, new)
    if done <= _common_prefix(text, new) or not now[done:].startswith(text[done:]):
        return now
    since = now[max(done, len(text)) :]
    if since and len(text) <= done < len(text) + _SAME_BYTES_MIN:
        # Another writer's comment may begin like the agent's, although none of the agent's text is
        # written yet.
        since = now[len(text) :]
    return new + since


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))

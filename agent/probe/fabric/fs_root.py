"""Reader of files below a root, which is this machine's or a copy of another one's.

Links in a copy never lead out of it, so that this machine is never mistaken for the other. An
unreadable file is an `Unread` with the reason, never an exception.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.shim.system.job_files import RefusedFileError, open_checked

BYTES_MAX: Final = 1 << 16
_NAMES_MAX: Final = 8192
_LINKS_MAX: Final = 40
# Do not wait for a fifo, and do not take over a terminal.
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW

Read = Callable[[str], bytes]
"""Function from a path below the root, without a leading slash, to the file's content. Raises
OSError.
"""


@dataclass(frozen=True, slots=True)
class Unread:
    """Reason why there is no value. `absent`: the file does not exist. `empty`: the kernel reports
    no value.
    """

    why: str
    absent: bool = False
    empty: bool = False


_ABSENT: Final = Unread("no such file", absent=True)
_REASONS: Final = {
    errno.ENOENT: _ABSENT,
    errno.ENOTDIR: _ABSENT,
    errno.ENODEV: Unread("no such device", absent=True),
    errno.ENXIO: Unread("no such device", absent=True),
    errno.EACCES: Unread("permission denied"),
    errno.EPERM: Unread("operation not permitted"),
    errno.EINVAL: Unread("the kernel has no value (EINVAL)", empty=True),
    errno.ENODATA: Unread("the kernel has no value (ENODATA)", empty=True),
    errno.EOPNOTSUPP: Unread("the driver does not support it", empty=True),
    errno.EISDIR: Unread("a directory instead of a file"),
    errno.EMEDIUMTYPE: Unread("not a plain file"),
    errno.ELOOP: Unread("circular links"),
}
TOO_LONG: Final = Unread(f"longer than {BYTES_MAX} bytes")
NO_TEXT: Final = Unread("not UTF-8 text")
EMPTY: Final = Unread("an empty file")


def unread(error: OSError) -> Unread:
    """Return the reason as a message."""
    return _REASONS.get(error.errno or 0) or Unread(error.strerror or str(error))


class FsRoot:
    """The files below `root`. Tests pass `read` to replace the kernel's answers.

    It caches resolved directories, so use it for one probe only.
    """

    def __init__(self, root: Path = Path("/"), read: Read | None = None) -> None:
        self.root = root
        self.live = os.path.realpath(root) == "/"
        # Without a trailing slash: / becomes the empty string.
        self._base = os.path.realpath(root).rstrip("/")
        self._read = read or self.bytes_of
        self._folders: dict[str, str | OSError] = {}

    def text(self, path: str) -> str | Unread:
        """Return the stripped content of a file. An empty one is Unread."""
        return self._text(lambda: self._read(path))

    def text_of_user(self, path: str) -> str | Unread:
        """Return the content of a file in a user's home: only a regular file owned by the
        directory's owner. Otherwise root would follow a link to a file that the user cannot read,
        or open a device, which for some devices is enough to start them.
        """
        return self._text(lambda: self._bytes_of_user(path))

    def names(self, path: str) -> tuple[str, ...] | Unread:
        """Return the names in a directory, unordered."""
        try:
            found = os.listdir(self._folder(path))
        except OSError as error:
            return unread(error)
        except ValueError:
            return _ABSENT
        return tuple(name for name in found[:_NAMES_MAX] if name.isprintable())

    def real(self, path: str) -> str | Unread:
        """Return the resolved path of a directory, below the root."""
        try:
            return self._folder(path).removeprefix(self._base).lstrip("/")
        except OSError as error:
            return unread(error)

    def link(self, path: str) -> str | Unread:
        """Return the target of a link, whether it exists or not."""
        folder, _, name = path.rpartition("/")
        try:
            found = os.readlink(f"{self._folder(folder)}/{name}")
        except OSError as error:
            return unread(error)
        return found if found.isprintable() else NO_TEXT

    def exists(self, path: str) -> bool:
        """True if the path exists, readable or not."""
        return not isinstance(self.locate(path), Unread)

    def locate(self, path: str) -> str | Unread:
        """Return the path by which this process reaches an existing file or directory."""
        try:
            return self._resolve(path)
        except OSError as error:
            return unread(error)

    def bytes_of(self, path: str) -> bytes:
        """Return the content of a file, at most one byte more than the limit. Raises OSError."""
        fd = self._open(path)
        try:
            first = os.read(fd, BYTES_MAX + 1)
            if len(first) < 4096:
                return first
            # proc returns long files in pieces.
            pieces = [first]
            size = len(first)
            while size <= BYTES_MAX and (piece := os.read(fd, BYTES_MAX + 1 - size)):
                pieces.append(piece)
                size += len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def _text(self, read: Callable[[], bytes]) -> str | Unread:
        try:
            raw = read()
        except OSError as error:
            return unread(error)
        except ValueError:
            return _ABSENT
        if len(raw) > BYTES_MAX:
            return TOO_LONG
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError:
            return NO_TEXT
        return text or EMPTY

    def _bytes_of_user(self, path: str) -> bytes:
        owner = os.stat(self._folder(path.rpartition("/")[0])).st_uid
        try:
            fd = open_checked(self._resolve(path), owner)
        except RefusedFileError as error:
            raise OSError(errno.EMEDIUMTYPE, str(error)) from error
        try:
            return os.read(fd, BYTES_MAX + 1)
        finally:
            os.close(fd)

    def window(self, path: str, offset: int, size: int) -> bytes:
        """Return a part of a binary file; empty if it is unreadable."""
        try:
            fd = self._open(path)
        except OSError:
            return b""
        try:
            return os.pread(fd, size, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        """Open a file. In a copy only plain files, because a device node would be this machine's
        device.
        """
        folder, _, name = path.rpartition("/")
        if not self.live:
            place = f"{self._folder(folder)}/{name}"
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                place = self._resolve(path)
                mode = os.lstat(place).st_mode
            if stat.S_ISDIR(mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path_shown(place))
            if not stat.S_ISREG(mode):
                raise OSError(errno.EMEDIUMTYPE, "not a plain file", path_shown(place))
            return os.open(place, os.O_RDONLY | _FLAGS)
        try:
            return os.open(f"{self._folder(folder)}/{name}", os.O_RDONLY | _FLAGS)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return os.open(self._resolve(path), os.O_RDONLY | _FLAGS)

    def _folder(self, path: str) -> str:
        """Return a directory's path for this process, with links resolved below the root."""
        known = self._folders.get(path)
        if known is None:
            try:
                known = self._resolve(path)
            except OSError as error:
                known = error
            self._folders[path] = known
        if isinstance(known, OSError):
            raise known.with_traceback(None)
        return known

    def _resolve(self, path: str) -> str:
        """Resolve like realpath, but `/` and the parent of the root are the root. Raises
        OSError.
        """
        parent, _, name = path.rstrip("/").rpartition("/")
        if not name:
            return self._base
        at = self._folder(parent) if parent else self._base
        return self._step(at, [name])

    def _step(self, at: str, rest: list[str]) -> str:
        links = 0
        while rest:
            name = rest.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                at = at.rpartition("/")[0] if len(at) > len(self._base) else self._base
                continue
            place = f"{at}/{name}"
            try:
                target = os.readlink(place)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                at = place
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path_shown(place))
            if target.startswith("/"):
                at = self._base
            rest[:0] = target.split("/")
        return at


def path_shown(path: str) -> str:
    """Return the path for a message, without terminal control characters."""
    return path.encode("unicode_escape").decode()

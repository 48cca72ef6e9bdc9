"""File access of the jobs' user, checked without becoming that user."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JobUser:
    """A user of this machine with all of its groups."""

    name: str
    uid: int
    groups: frozenset[int]
    home: str

    def cannot_open(self, path: str) -> str | None:
        """Return why the user could not open a file for reading and writing, or None. Checks only
        the mode, not access lists.
        """
        try:
            found = os.stat(path)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        if self.uid == 0:
            return None
        if self._may(found, stat.S_IROTH | stat.S_IWOTH):
            return None
        return f"mode {stat.filemode(found.st_mode)} shuts out {self.name}, who runs the jobs"

    def closed_folder(self, path: str) -> str | None:
        """Return the first folder on the way to `path`, links followed, through which the user may
        not pass, or None. Checks only modes, not access lists. Raises OSError.
        """
        if self.uid == 0:
            return None
        above = reversed(Path(os.path.realpath(path, strict=True)).parents)
        return next((str(it) for it in above if not self._may(it.stat(), stat.S_IXOTH)), None)

    def _may(self, found: os.stat_result, wanted: int) -> bool:
        """True if the mode gives the user `wanted`, in bits for others."""
        if found.st_uid == self.uid:
            wanted <<= 6
        elif found.st_gid in self.groups:
            wanted <<= 3
        return found.st_mode & wanted == wanted


def user_named(name: str) -> JobUser | None:
    """Return a user of this machine, or None."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = frozenset(os.getgrouplist(name, entry.pw_gid))
    return JobUser(name, entry.pw_uid, groups, entry.pw_dir)

"""File access of the jobs' user, checked without becoming that user."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass


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
        if found.st_uid == self.uid:
            wanted = stat.S_IRUSR | stat.S_IWUSR
        elif found.st_gid in self.groups:
            wanted = stat.S_IRGRP | stat.S_IWGRP
        else:
            wanted = stat.S_IROTH | stat.S_IWOTH
        if found.st_mode & wanted == wanted:
            return None
        return f"mode {stat.filemode(found.st_mode)} shuts out {self.name}, who runs the jobs"


def user_named(name: str) -> JobUser | None:
    """Return a user of this machine, or None."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = frozenset(os.getgrouplist(name, entry.pw_gid))
    return JobUser(name, entry.pw_uid, groups, entry.pw_dir)

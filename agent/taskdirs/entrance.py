"""Entrance to the tasks' folders: whether the users of jobs pass through the folders above."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NOBODY: Final = 65534
"""A uid and gid without rights of its own."""
_ENTER: Final = ("/bin/sh", "-c", 'cd -- "$1"', "sh")


def cannot_enter(user: str | None, folder: Path) -> str:
    """Return why the user of jobs cannot enter a folder, or "". None as user: each job has its
    submitter's. Blocks. Raises OSError or KeyError if that cannot be examined.
    """
    if user is None:
        # The groups of the submitters are unknown at this point.
        who, uid, gid, groups = "users", NOBODY, NOBODY, [NOBODY]
    else:
        entry = pwd.getpwnam(user)
        who, uid, gid = f"user {user}", entry.pw_uid, entry.pw_gid
        groups = os.getgrouplist(user, gid)
    if _enters(uid, gid, groups, folder):
        return ""
    above = reversed(folder.parents)
    closed = next((it for it in above if not _enters(uid, gid, groups, it)), folder)
    return (
        f"{who}, whom jobs run as, cannot enter {folder}: let others pass through each "
        f"folder above it (chmod o+x); the first that is closed is {closed}"
    )


def _enters(uid: int, gid: int, groups: Sequence[int], folder: Path) -> bool:
    """True if a process of this user can make a folder its own."""
    # Only the kernel knows: the folders above may have access lists.
    entered = subprocess.run(
        [*_ENTER, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        user=uid,
        group=gid,
        extra_groups=groups,
        check=False,
    )
    return entered.returncode == 0

"""Detect network file systems, on which locks and shared memory fail silently."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_KINDS: Final = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "smb3",
        "wekafs",
    }
)
_MOUNTS: Final = Path("/proc/self/mountinfo")


def network_kind(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of network file system of the folder (`nfs4`). Returns "" if it is local
    or unknown.
    """
    try:
        device = os.stat(folder).st_dev
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw (proc(5))
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            kind = after.partition(" ")[0]
            return kind if kind in _KINDS else ""
    return ""

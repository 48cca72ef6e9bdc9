"""Health of the disks that an agent needs."""

from __future__ import annotations

import msgspec

_GIB = 1 << 30
_MIB = 1 << 20
_TEXT_MAX = 4096


class DiskHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """The disk of `folder`. `full`: no task can start there; otherwise it is nearly full. `hangs`:
    it has not answered in time, and the figures are older. `error`: the error of a write that
    failed; `hangs` is set then, too.
    """

    folder: str
    free_bytes: int = 0
    total_bytes: int = 0
    full: bool = False
    inodes: bool = False  # files, not bytes, are exhausted
    hangs: bool = False
    error: str = ""

    @property
    def text(self) -> str:
        """Return the message for users."""
        if self.error:
            why = f"cannot be written ({self.error})"
            return f"the disk of {self.folder} {why}: see dmesg on that node"
        if self.hangs:
            return f"the disk of {self.folder} does not answer: see dmesg on that node"
        what = "full" if self.full else "nearly full"
        if self.inodes:
            return f"the disk of {self.folder} is {what}: it has no inodes for more files"
        return f"the disk of {self.folder} is {what}: {room(self)} free"


def room(disk: DiskHealth) -> str:
    """Return `12 MiB of 64 MiB`."""
    return f"{_size(disk.free_bytes)} of {_size(disk.total_bytes)}"


def sound(disk: DiskHealth) -> bool:
    """True if a coordinator can show it."""
    texts = disk.folder, disk.error
    return all(len(text) <= _TEXT_MAX and text.isprintable() for text in texts)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count // _MIB} MiB"

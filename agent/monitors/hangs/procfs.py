"""State of ranks and their child processes, from /proc. Nothing here raises."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.shim.system.syscalls import state_of
from muster.protocol.observations.hangs import Doing

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_THREADS_MAX: Final = 2000
DESCRIPTORS_MAX: Final = 4096
"""Descriptors of a rank's processes that one look reads. A job may have a million of them, and the
hang watch of all jobs of the node would wait for them."""
_MEMBERS_MAX: Final = 256
_BYTES_MAX: Final = 1 << 20
_DOING: Final = {
    "R": Doing.RUNS,
    "D": Doing.DISK,
    "T": Doing.STOPPED,
    "t": Doing.TRACED,
    "Z": Doing.GONE,
    "X": Doing.GONE,
}
# Kernel functions in which a thread sleeps while it waits for a file server or a disk.
_FILES: Final = (
    "request_wait_answer",
    "fuse_",
    "nfs",
    "rpc_wait",
    "ceph_",
    "cl_sync",
    "cl_lock",
    "ll_",
    "osc_",
    "ptlrpc",
    "gpfs",
    "cxiWaitEventWait",
    "folio_wait",
    "wait_on_page",
    "io_schedule",
    "jbd2",
    "blk",
    "bit_wait_io",
    "balance_dirty_pages",
    "submit_bio_wait",
    "rq_qos_wait",
    "wbt_",
    "xfs_",
    "ext4_",
    "btrfs_",
    "rwsem_down",
)


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of a process or a thread. `cpu_s` includes ended children."""

    state: str
    parent: int
    cpu_s: float
    began: int


def stat_of(path: str) -> Stat | None:
    """Parse a file in the format of /proc/PID/stat."""
    text = _read(path)
    # The name in parentheses may contain anything, even parentheses and newlines.
    fields = text[text.rfind(")") + 1 :].split()
    if len(fields) < 20:
        return None
    try:
        ticks = sum(int(field) for field in fields[11:15])
        return Stat(fields[0], int(fields[1]), ticks * _TICK_S, int(fields[19]))
    except ValueError:
        return None


class Processes:
    """Assigns processes to ranks. Each process is assigned once, by the parent it then has."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self.root = str(root)
        self._of: dict[int, int | None] = {}
        self._began: dict[int, int] = {}
        self._ranks: frozenset[int] = frozenset()

    def look(self, ranks: Iterable[int]) -> dict[int, list[int]]:
        """The living processes of each rank, the rank itself first, at most _MEMBERS_MAX. The
        caller has checked that the ranks belong to its tasks."""
        wanted = frozenset(ranks)
        if wanted != self._ranks:
            self._ranks, self._of, self._began = wanted, {}, {}
        there = set(self._pids())
        for pid in self._of.keys() - there:
            self._forget(pid)
        for pid in sorted(there - self._of.keys()):
            self._owner(pid, there)
        found: dict[int, list[int]] = {pid: [pid] for pid in wanted if pid in there}
        for pid, owner in list(self._of.items()):
            if owner is None or pid == owner or owner not in found:
                continue
            if len(found[owner]) == _MEMBERS_MAX:
                continue
            stat = self.stat(pid)
            if stat is not None and stat.began == self._began.get(pid):
                found[owner].append(pid)
            else:
                # The pid belongs to another process by now.
                self._forget(pid)
        return found

    def _forget(self, pid: int) -> None:
        del self._of[pid]
        self._began.pop(pid, None)

    def _owner(self, pid: int, there: set[int]) -> int | None:
        way: list[int] = []
        owner: int | None = None
        while pid in there:
            if pid in self._ranks:
                owner = pid
                self._of[pid] = pid
                break
            if pid in self._of:
                owner = self._of[pid]
                break
            way.append(pid)
            stat = self.stat(pid)
            if stat is None or stat.parent in way:
                break
            self._began[pid] = stat.began
            pid = stat.parent
        for one in way:
            self._of[one] = owner
        return owner

    def _pids(self) -> Iterator[int]:
        try:
            names = os.listdir(self.root)
        except OSError:
            return
        for name in names:
            if name.isdecimal():
                yield int(name)

    def stat(self, pid: int) -> Stat | None:
        """The state of a process. In `exec` it has no CPU time and no start time for now: a read
        of them could last for ever.
        """
        state = state_of(pid, self.root)
        if state is not None and not state[2]:
            return Stat(state[0], state[1], 0.0, 0)
        return stat_of(f"{self.root}/{pid}/stat")

    def _readable(self, pid: int) -> bool:
        state = state_of(pid, self.root)
        return state is None or state[2]

    def cpu_s(self, pids: Iterable[int]) -> float:
        """CPU time of all processes, including their ended children."""
        stats = (self.stat(pid) for pid in pids)
        return sum(stat.cpu_s for stat in stats if stat is not None)

    def disk_bytes(self, pid: int) -> int | None:
        """Bytes read from and written to disks and file servers."""
        total = None
        if not self._readable(pid):
            return None
        for line in _read(f"{self.root}/{pid}/io").splitlines():
            name, _, value = line.partition(": ")
            if name in ("read_bytes", "write_bytes") and value.isdecimal():
                total = (total or 0) + int(value)
        return total

    def doing(self, pid: int, *, threads: bool) -> tuple[Doing, str]:
        """The state of the main thread. With `threads`, DISK if any thread waits for a disk."""
        stat = self.stat(pid)
        if stat is None:
            return Doing.GONE, ""
        doing = _DOING.get(stat.state, Doing.SLEEPS)
        where = self._where(f"{self.root}/{pid}") if threads and self._readable(pid) else ""
        if not threads or doing in (Doing.STOPPED, Doing.TRACED, Doing.GONE):
            return doing, where
        if doing is Doing.DISK or where.startswith(_FILES):
            return Doing.DISK, where
        try:
            names = os.listdir(f"{self.root}/{pid}/task")[:_THREADS_MAX]
        except OSError:
            return doing, where
        for name in names:
            if name == str(pid):
                continue
            folder = f"{self.root}/{pid}/task/{name}"
            there = self._where(folder)
            if there:
                # Reading wchan costs half as much as reading the state, and there may be thousands
                # of threads.
                if there.startswith(_FILES):
                    return Doing.DISK, there
                continue
            thread = stat_of(f"{folder}/stat")
            if thread is not None and thread.state == "D":
                return Doing.DISK, ""
        return doing, where

    def _where(self, folder: str) -> str:
        text = _read(f"{folder}/wchan").strip()
        return "" if text == "0" else text[:64]

    def sockets(self, pids: Iterable[int]) -> frozenset[int] | None:
        """Inodes of the open sockets of the processes.

        Returns None if they may not be read, or have more than DESCRIPTORS_MAX descriptors.
        """
        found: set[int] = set()
        seen, left = False, DESCRIPTORS_MAX
        for pid in pids:
            try:
                entries = os.scandir(f"{self.root}/{pid}/fd")
            except OSError:
                continue
            seen = True
            with entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return None
                    try:
                        target = os.readlink(entry.path)
                    except OSError:
                        continue
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
        return frozenset(found) if seen else None

    def environment(self, pid: int, *names: str) -> dict[str, str]:
        """The values of these variables when the process was started."""
        found: dict[str, str] = {}
        if not self._readable(pid):
            return found
        for entry in _read(f"{self.root}/{pid}/environ").split("\0"):
            name, _, value = entry.partition("=")
            if name in names:
                found[name] = value
        return found


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(_BYTES_MAX) or b"").decode("utf-8", "replace")
    except OSError:
        return ""

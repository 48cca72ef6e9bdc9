"""A cgroup (v2) per task, if the shim can write there. A job's processes cannot leave it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent.shim.system import syscalls

FOLDER = "muster"
# The controllers that limit a task, each with a file that exists where it is in effect.
CONTROLLERS = {"memory": "memory.max", "cpu": "cpu.weight", "pids": "pids.max"}
_READ_BYTES = 4096
# The folder in which the cgroups of tasks are made, by parent. Neither the folder nor this process
# is ever moved, so it is looked up once, not for each task.
_found: dict[str | None, str] = {}


def own_cgroup() -> str | None:
    """The folder of this process's cgroup v2. Returns None if it is not visible in a cgroup v2
    mount.
    """
    mount = _mounted()
    if mount is None:
        return None
    path = "/"
    with open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                path = line[3:].rstrip("\n")
    root, point = mount
    inside = os.path.relpath(path, root)
    if inside.startswith(".."):
        return None
    return os.path.normpath(os.path.join(point, inside))


def available() -> set[str]:
    """The controllers of the whole cgroup v2 mount."""
    mount = _mounted()
    if mount is None:
        return set()
    return set(_read(os.path.join(mount[1], "cgroup.controllers")).split())


def given_to_tasks() -> set[str]:
    """The controllers that limit tasks whose cgroups are below this process's own."""
    probe = Cgroup.make(None, f"{prefix_of(os.getpid())}probe")
    if probe is None:
        return set()
    found = {
        controller
        for controller, file in CONTROLLERS.items()
        if os.path.exists(os.path.join(probe.path, file))
    }
    probe.remove()
    probe.close()
    return found


def _mounted() -> tuple[str, str] | None:
    """The mounted part of the cgroup v2 tree and its mount point."""
    # A user may have a mount point with a name that is not UTF-8.
    with open("/proc/self/mountinfo", errors="surrogateescape", newline="\n") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            if right.split(" ", 1)[0] == "cgroup2":
                fields = left.split(" ")
                return fields[3], fields[4]
    return None


class Cgroup:
    """A task's cgroup. A folder that is gone counts as empty, because only an empty one can be
    removed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._limits: Mapping[str, str] = {}
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            pass

    def fork(self) -> int:
        """Like os.fork, but put the child into this cgroup. Raises OSError.

        If the kernel refuses, the child starts in the parent's cgroup. The kernel refuses in
        threaded and over-full cgroups. The shim, a sub-reaper, still holds the process then.
        """
        if self._fd is not None:
            try:
                return syscalls.fork_into(self._fd)
            except OSError:
                pass
        pid = os.fork()
        if pid == 0:
            _try_write(self.procs, "0")
        return pid

    @classmethod
    def make(cls, parent: str | None, name: str) -> Cgroup | None:
        """Make `parent`/muster/`name`, by default below the own cgroup. Returns None if not
        writable.
        """
        try:
            middle = _found.get(parent)
            if middle is None or not os.path.isdir(middle):
                middle = _make_middle(parent)
            if middle is None:
                return None
            path = os.path.join(middle, name)
            os.mkdir(path, mode=0o755)
        except OSError:
            return None
        _found[parent] = middle
        return cls(path)

    def limit(self, limits: Mapping[str, str]) -> None:
        """Write these files, such as memory.max. Those of missing controllers are left out."""
        self._limits = limits
        for name, text in limits.items():
            _try_write(os.path.join(self.path, name), text)

    def close(self) -> None:
        """Close the descriptor. The folder stays: another process uses it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def procs(self) -> str:
        return os.path.join(self.path, "cgroup.procs")

    def populated(self) -> bool:
        """True if a living process is in it or below."""
        text = _read(os.path.join(self.path, "cgroup.events"))
        return "populated 1" in text

    def members(self) -> list[int]:
        found = []
        for folder, _, _ in os.walk(self.path):
            found += [int(pid) for pid in _read(os.path.join(folder, "cgroup.procs")).split()]
        return [pid for pid in found if pid > 0]

    def kill(self) -> bool:
        """SIGKILL all processes at once, including forks in flight. Returns False on kernels before
        5.14.
        """
        return _try_write(os.path.join(self.path, "cgroup.kill"), "1")

    def oom_kills(self) -> int | None:
        """Number of processes killed for memory. Returns None without the memory controller."""
        return self._memory_events().get("oom_kill")

    def memory_limit_reached(self) -> int | None:
        """Its own memory limit in bytes, if processes were killed because of that, and not only
        because of a limit above it or a full node. Else None.
        """
        events = self._memory_events()
        # Not as the kernel has it, which rounds it to pages.
        limit = self._limits.get("memory.max")
        killed = events.get("oom", 0) > 0 and events.get("oom_kill", 0) > 0
        return int(limit) if killed and limit is not None else None

    def _memory_events(self) -> dict[str, int]:
        lines = _read(os.path.join(self.path, "memory.events")).splitlines()
        pairs = (line.partition(" ") for line in lines)
        return {name: int(value) for name, _, value in pairs}

    def remove(self) -> bool:
        """Remove it and the cgroups that the job made below. Returns False if it is not empty."""
        return _remove(self.path)


def _make_middle(parent: str | None) -> str | None:
    """Make the folder for the cgroups of tasks. Raises OSError."""
    base = parent or own_cgroup()
    if base is None or not os.path.exists(os.path.join(base, "cgroup.procs")):
        return None
    middle = os.path.join(base, FOLDER)
    os.makedirs(middle, mode=0o755, exist_ok=True)
    # The kernel refuses if the base holds processes itself. Then OOM kills are not counted and
    # tasks are not limited; nothing else is lost.
    for folder in (base, middle):
        for controller in CONTROLLERS:
            _try_write(os.path.join(folder, "cgroup.subtree_control"), f"+{controller}")
    return middle


def prefix_of(pid: int) -> str:
    """The prefix of the names of this shim's cgroups.

    Containers of one host may see one tree of cgroups, and each may have a process with this pid.
    """
    return f"shim-{os.stat('/proc/self/ns/pid').st_ino}-{pid}-"


def remove_all(parent: str | None, pid: int) -> bool:
    """Remove the cgroups that this shim made. Returns False if one is not empty."""
    prefix = prefix_of(pid)
    mine = [path for path in _made(parent) if os.path.basename(path).startswith(prefix)]
    return all(_remove(path) for path in mine)


def remove_dead(parent: str | None) -> None:
    """Remove the empty cgroups of shims that died together with their fork server.

    A cgroup that is not empty belongs to a task. The task's record names it, and an agent ends the
    processes in it.
    """
    for path in _made(parent):
        pid = os.path.basename(path).split("-")[2:3]
        if not pid or not pid[0].isdecimal():
            continue
        ours = os.path.basename(path).startswith(prefix_of(int(pid[0])))
        if ours and not os.path.exists(f"/proc/{pid[0]}"):
            _remove(path)


def dead() -> list[str]:
    """The paths of the cgroups below the whole cgroup v2 mount whose shims are dead."""
    mount = _mounted()
    found = []
    for folder, below, _ in os.walk(mount[1]) if mount is not None else ():
        if os.path.basename(folder) != FOLDER:
            continue
        for name in below:
            pid = name.split("-")[2:3] if name.startswith("shim-") else []
            if not pid or not pid[0].isdecimal() or os.path.exists(f"/proc/{pid[0]}"):
                continue
            if name.startswith(prefix_of(int(pid[0]))):
                found.append(os.path.join(folder, name))
        below.clear()
    return sorted(found)


def _made(parent: str | None) -> list[str]:
    """The paths of all cgroups that `Cgroup.make` made below `parent`."""
    base = parent or own_cgroup()
    if base is None:
        return []
    middle = os.path.join(base, FOLDER)
    try:
        names = os.listdir(middle)
    except OSError:
        return []
    return [os.path.join(middle, name) for name in names if name.startswith("shim-")]


def _remove(path: str) -> bool:
    try:
        # Few jobs make cgroups of their own in it.
        os.rmdir(path)
    except OSError:
        return _remove_all_below(path)
    return True


def _remove_all_below(path: str) -> bool:
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True


def _try_write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        text = b""
        while data := os.read(fd, _READ_BYTES):
            text += data
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode()

"""Resource limits of this node's jobs: those of the agent's service, not of the caller."""

from __future__ import annotations

import os
import re
import resource
from typing import Final

from agent.probe.fabric.fs_root import FsRoot, Unread
from muster.fabric.model import UNLIMITED, ProcessLimits

UNIT: Final = "muster-agent.service"
_CGROUPS: Final = (
    f"sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs",
    f"sys/fs/cgroup/systemd/system.slice/{UNIT}/cgroup.procs",
)
_FOLDERS: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_LINE: Final = re.compile(r"^(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", re.MULTILINE)
_SETTING: Final = re.compile(r"^\s*Limit(MEMLOCK|NOFILE)\s*=\s*(\S+)\s*$", re.MULTILINE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Default of systemd for a service that sets none.
_SYSTEMD_MEMLOCK: Final = 8 << 20
_SYSTEMD_NOFILE: Final = 524_288


def limits_of(tree: FsRoot, *, own: bool = False) -> ProcessLimits:
    """`own`: this process is the agent. Jobs get the hard limits, and unlimited locked memory if
    the agent may raise it.
    """
    if own and tree.live:
        return _own("the agent", tree)
    found = _of_service(tree) or _of_unit(tree)
    if found is not None:
        return found
    if tree.live:
        return _own("this process: no agent runs here as a service", tree)
    return _of_process(tree, "self", "proc/self/limits") or ProcessLimits(source="unknown")


def _own(source: str, tree: FsRoot) -> ProcessLimits:
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unbound = memlock == resource.RLIM_INFINITY or os.geteuid() == 0
    return ProcessLimits(
        source=source,
        memlock=UNLIMITED if unbound else memlock,
        nofile=UNLIMITED if nofile == resource.RLIM_INFINITY else nofile,
        shm_bytes=_shm(tree),
    )


def _of_service(tree: FsRoot) -> ProcessLimits | None:
    for path in _CGROUPS:
        pids = tree.text(path)
        if not isinstance(pids, Unread):
            first = pids.split()[0]
            if first.isdecimal():
                return _of_process(tree, first, f"the agent's service (pid {first})")
    return None


def _of_process(tree: FsRoot, pid: str, source: str) -> ProcessLimits | None:
    text = tree.text(f"proc/{pid}/limits")
    if isinstance(text, Unread):
        return None
    hard = {name: maximum for name, _, maximum in _LINE.findall(text)}
    status = tree.text(f"proc/{pid}/status")
    root = not isinstance(status, Unread) and re.search(r"^Uid:\s+\d+\s+0\b", status, re.MULTILINE)
    return ProcessLimits(
        source=source,
        memlock=UNLIMITED if root else _number(hard.get("Max locked memory")),
        nofile=_number(hard.get("Max open files")),
        shm_bytes=_shm(tree),
    )


def _of_unit(tree: FsRoot) -> ProcessLimits | None:
    """Limits of an installed service that does not run. A drop-in overrides the unit."""
    files = []
    for folder in _FOLDERS:
        if tree.exists(f"{folder}/{UNIT}"):
            files.append(f"{folder}/{UNIT}")
            break
    if not files:
        return None
    for folder in reversed(_FOLDERS):
        names = tree.names(f"{folder}/{UNIT}.d")
        if not isinstance(names, Unread):
            files += [f"{folder}/{UNIT}.d/{name}" for name in sorted(names)]
    said: dict[str, str] = {}
    for file in files:
        text = tree.text(file)
        if not isinstance(text, Unread):
            said |= dict(_SETTING.findall(text))
    return ProcessLimits(
        source=f"the unit file /{files[0]}",
        memlock=_systemd(said.get("MEMLOCK"), _SYSTEMD_MEMLOCK),
        nofile=_systemd(said.get("NOFILE"), _SYSTEMD_NOFILE),
        shm_bytes=_shm(tree),
    )


def _number(text: str | None) -> int | str | None:
    if text == UNLIMITED:
        return UNLIMITED
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def _systemd(text: str | None, default: int) -> int | str | None:
    """Parse `infinity`, `64K`, or soft and hard limits like `1024:2048`."""
    if text is None:
        return default
    hard = text.rpartition(":")[2]
    if hard == "infinity":
        return UNLIMITED
    found = re.fullmatch(r"([0-9]{1,12})([KMGT]?)", hard)
    return int(found[1]) * _UNITS[found[2]] if found else None


def _shm(tree: FsRoot) -> int | None:
    if not tree.live:
        return None
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - it is asked, not written to
    except OSError:
        return None
    return found.f_frsize * found.f_blocks

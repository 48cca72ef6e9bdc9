"""What starts shims: one interface, and which backend serves a node."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from agent.config import AgentConfig
from muster.daemon.errors import DaemonError

SYSTEMD_RUN: Final = "systemd-run"
BOOTED: Final = Path("/run/systemd/system")


class SpawnError(DaemonError):
    """No shim could be started; the text says why."""


class ShimOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How shims differ from the defaults of agent/shim/options.py. Times in seconds."""

    cgroup: bool = True
    cgroup_parent: str | None = None
    orphan_s: float = 30.0
    linger_s: float = 30.0
    unkillable_s: float = 60.0
    processes_max: int | None = None


def options_of(config: AgentConfig, tree: Path = Path("/")) -> ShimOptions:
    """`tree`: below which proc is read."""
    bound = config.processes_max
    return ShimOptions(
        unkillable_s=config.unkillable_s,
        processes_max=_most_of(tree / "proc/sys/kernel") if bound is None else bound,
    )


def _most_of(folder: Path) -> int | None:
    """Of the numbers that the kernel has for processes and threads, what one job may take: a fifth
    is left for the agent, and for whoever comes to look. None where that cannot be read."""
    try:
        found = [int((folder / name).read_text()) for name in ("pid_max", "threads-max")]
    except (OSError, ValueError):
        return None
    return min(found) * 4 // 5


class Shims(Protocol):
    """A backend. How a shim was started is forgotten at once: whoever wants it finds it by the
    folder of its task, and speaks to it on the socket there.
    """

    # Whether a shim can be given a connection.
    gives: bool

    async def start(self) -> None:
        """Be ready to start shims. Raises SpawnError."""

    async def spawn(self, task_dir: Path, given: socket.socket | None = None) -> int:
        """Start the shim of the task that the folder is named after; returns its pid.

        Its path is absolute. The folder is made where it is missing, its parent must be there.
        On return the shim can be connected to; `given`, where the backend `gives`, is its end of a
        first connection, on which it says nothing before it was told something. Raises SpawnError.
        """
        ...

    async def close(self) -> None:
        """End what starts them; shims live on."""


def request_of(task_dir: Path, options: ShimOptions) -> dict[str, object]:
    """What a shim is told of itself. Raises SpawnError."""
    if not task_dir.is_absolute():
        raise SpawnError(f"the task's folder {task_dir} is no absolute path")
    return {
        **msgspec.to_builtins(options),
        "task_dir": str(task_dir),
        "task": task_dir.name,
    }


def by_units(config: AgentConfig, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether each shim is to be a unit of systemd. Raises SpawnError where that was asked for and
    cannot be."""
    if config.shims == "template":
        return False
    lacking = lacks_units()
    if config.shims == "systemd":
        if lacking:
            raise SpawnError(f"shims is systemd, but {lacking}; set it to template or auto")
        return True
    # An agent that somebody started by hand leaves no units behind.
    in_unit = os.getppid() == 1 and "INVOCATION_ID" in environ
    return in_unit and not lacking and not config.shared_host


def restricted(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process and all that it forks can gain no privileges, as in a sandbox."""
    try:
        return re.search(r"(?m)^NoNewPrivs:\s*1$", status.read_text()) is not None
    except OSError:
        return False


def lacks_units() -> str:
    """Why this process can make no units, "" where it can."""
    if not BOOTED.is_dir():
        return "this machine was not booted by systemd"
    if os.geteuid() != 0:
        return "only root can make units"
    if shutil.which(SYSTEMD_RUN) is None:
        return f"there is no {SYSTEMD_RUN}"
    return ""

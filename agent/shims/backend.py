"""Interface of the backends that start shims, and the choice of a backend for a node."""

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
from agent.shim.system import cgroup
from agent.shims.limits import NO_LIMITS, TaskLimits, files_of, unenforced
from muster.daemon.errors import DaemonError

SYSTEMD_RUN: Final = "systemd-run"
BOOTED: Final = Path("/run/systemd/system")


class SpawnError(DaemonError):
    """No shim could be started. The message says why."""


class ShimOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shim options that differ from the defaults of agent/shim/options.py. Times in seconds."""

    cgroup: bool = True
    cgroup_parent: str | None = None
    orphan_s: float = 30.0
    linger_s: float = 30.0
    unkillable_s: float = 60.0
    processes_max: int | None = None


def options_of(config: AgentConfig, tree: Path = Path("/")) -> ShimOptions:
    """`tree` is the root for reading proc."""
    bound = config.processes_max
    return ShimOptions(
        unkillable_s=config.unkillable_s,
        processes_max=_most_of(tree / "proc/sys/kernel") if bound is None else bound,
    )


def _most_of(folder: Path) -> int | None:
    """Return the limit of processes and threads for one job: four fifths of the kernel's limit, so
    that the agent and administrators still get some. None if it is unreadable.
    """
    try:
        found = [int((folder / name).read_text()) for name in ("pid_max", "threads-max")]
    except (OSError, ValueError):
        return None
    return min(found) * 4 // 5


class Shims(Protocol):
    """A backend. It keeps no record of started shims: others find a shim by its task directory, and
    use the socket there.
    """

    # True if a shim can inherit a connection.
    gives: bool

    async def start(self) -> None:
        """Prepare to start shims. Raises SpawnError."""

    def use(self, options: ShimOptions) -> None:
        """Start later shims with these options."""

    async def spawn(
        self, task_dir: Path, given: socket.socket | None = None, limits: TaskLimits = NO_LIMITS
    ) -> int:
        """Start the shim of the task that the directory is named after. Returns its pid.

        The path is absolute. The directory is created if missing; its parent must exist. On return
        the shim accepts connections. If the backend `gives`, `given` is the shim's end of a first
        connection, on which it sends nothing before it has received a command. Raises SpawnError.
        """
        ...

    async def close(self) -> None:
        """Stop the backend. Shims live on."""


def request_of(
    task_dir: Path, options: ShimOptions, limits: TaskLimits = NO_LIMITS
) -> dict[str, object]:
    """Return the request that describes a shim. Raises SpawnError."""
    if not task_dir.is_absolute():
        raise SpawnError(f"the task's folder {task_dir} is not an absolute path")
    wish = msgspec.to_builtins(options)
    wish.pop("processes_max", None)
    return {
        **wish,
        "limits": files_of(limits, options.processes_max),
        "task_dir": str(task_dir),
        "task": task_dir.name,
    }


def by_units(config: AgentConfig, environ: Mapping[str, str] = os.environ) -> bool:
    """True if each shim runs as a systemd unit. Raises SpawnError if that is configured but
    impossible.
    """
    if config.shims == "forked":
        return False
    lacking = lacks_units()
    if config.shims == "systemd":
        if lacking:
            raise SpawnError(f"shims is systemd, but {lacking}; set it to forked or auto")
        return True
    # A manually started agent leaves no units behind.
    in_unit = os.getppid() == 1 and "INVOCATION_ID" in environ
    return in_unit and not lacking and not config.shared_host


def unenforced_limits(config: AgentConfig) -> dict[str, str]:
    """Return the limits that are not enforced for the tasks of this agent, with the reasons. Raises
    SpawnError like `by_units`.
    """
    units = by_units(config)
    controllers = cgroup.available() if units else cgroup.given_to_tasks()
    return unenforced(controllers, why_devices_are_open(units=units))


def why_devices_are_open(*, units: bool, root: Path = Path("/")) -> str:
    """Return why the devices of tasks are not limited, or "". `units`: tasks are units."""
    if not units:
        return "shims are forked, and only systemd limits the devices of its units"
    if (root / "run/systemd/container").exists():
        return "this node is a container, where systemd cannot be relied on for it"
    if not (root / "sys/fs/cgroup/cgroup.controllers").exists():
        return "cgroup v2 is not the only hierarchy of cgroups"
    return ""


def may_use_units(config: AgentConfig) -> bool:
    """True if an agent with this configuration would run each shim as a systemd unit, when systemd
    has started it.
    """
    return config.shims != "forked" and not config.shared_host and not lacks_units()


def restricted(status: Path = Path("/proc/self/status")) -> bool:
    """True if this process and its children can gain no privileges, as in a sandbox."""
    try:
        return re.search(r"(?m)^NoNewPrivs:\s*1$", status.read_text()) is not None
    except OSError:
        return False


def lacks_units() -> str:
    """Return why this process cannot create units, or ""."""
    if not BOOTED.is_dir():
        return "this machine was not booted by systemd"
    if os.geteuid() != 0:
        return "only root can make units"
    if shutil.which(SYSTEMD_RUN) is None:
        return f"there is no {SYSTEMD_RUN}"
    return ""

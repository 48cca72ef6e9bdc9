"""Shims as transient services of systemd, each a unit of its own in muster.slice.

Such a unit does not depend on the agent's, which may be stopped, killed or restarted freely.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from agent.shim import exit_record
from agent.shim.fork_server import OOM_SCORE
from agent.shims.backend import SYSTEMD_RUN, ShimOptions, SpawnError, request_of
from agent.shims.limits import NO_LIMITS, TaskLimits, properties_of

ROOT: Final = Path(__file__).resolve().parents[2]
SLICE: Final = "muster.slice"
# A unit starts an interpreter, and a booting node is busy.
START_S: Final = 60
# Stopping the unit gives the job its grace period, up to this.
STOP_S: Final = 90
# Concurrent requests. More would not help, because PID 1 handles them one by one.
AT_ONCE: Final = 8
_PREFIX: Final = "muster-task-"
_SUFFIX: Final = ".service"
ALL: Final = f"{_PREFIX}*{_SUFFIX}"
_DESCRIPTION: Final = "Muster task in "
DROPPED: Final = (
    "CAP_SYS_BOOT CAP_SYS_TIME CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_AUDIT_CONTROL CAP_WAKE_ALARM"
)
_WORDS_MAX: Final = 300
_PEER: Final = struct.Struct("3i")
_LIMITS: Final[Mapping[str, int]] = {
    "LimitAS": resource.RLIMIT_AS,
    "LimitCORE": resource.RLIMIT_CORE,
    "LimitCPU": resource.RLIMIT_CPU,
    "LimitDATA": resource.RLIMIT_DATA,
    "LimitFSIZE": resource.RLIMIT_FSIZE,
    "LimitMSGQUEUE": resource.RLIMIT_MSGQUEUE,
    "LimitNOFILE": resource.RLIMIT_NOFILE,
    "LimitNPROC": resource.RLIMIT_NPROC,
    "LimitRTPRIO": resource.RLIMIT_RTPRIO,
    "LimitSIGPENDING": resource.RLIMIT_SIGPENDING,
    "LimitSTACK": resource.RLIMIT_STACK,
}
Rlimits = Callable[[int], tuple[int, int]]

PROPERTIES: Final = (
    "Type=notify",
    "NotifyAccess=main",
    f"TimeoutStartSec={START_S}",
    "Restart=no",
    # Stopping the unit signals the shim, which stops the job as usual. Processes that remain when
    # the shim has exited are killed at once.
    "KillMode=mixed",
    "KillSignal=SIGTERM",
    f"TimeoutStopSec={STOP_S}",
    # The shim handles a rank that is killed for lack of memory.
    "OOMPolicy=continue",
    f"OOMScoreAdjust={OOM_SCORE}",
    "Delegate=yes",
    # RDMA pins memory.
    "LimitMEMLOCK=infinity",
    # Like the agent's unit with systemd/forked-shims.conf.
    f"CapabilityBoundingSet=~{DROPPED}",
    # At shutdown, jobs end before the services that they use.
    "After=network-online.target remote-fs.target nss-user-lookup.target",
)


def unit_of(task: str) -> str:
    """Return the name of a task's unit: muster-task-7-1-0.service for task 7.1.0."""
    return f"{_PREFIX}{task.replace('.', '-')}{_SUFFIX}"


def description_of(task_dir: Path) -> str:
    """Return the unit's description, by which its directory is found again."""
    return f"{_DESCRIPTION}{task_dir}"


def folder_of(description: str) -> Path | None:
    """Return the task directory of the unit with this description."""
    path = description.removeprefix(_DESCRIPTION)
    return Path(path) if path != description and path.startswith("/") else None


def command_of(request: Mapping[str, object]) -> list[str]:
    """Return the command that becomes the shim of this request."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        " from agent.shim.standalone import main; sys.exit(main(sys.argv[1]))"
    )
    # Hexadecimal text contains nothing that systemd would expand.
    words = json.dumps(request).encode().hex()
    # -I and -S: ignore the environment, and skip site-packages.
    return [sys.executable, "-I", "-S", "-c", code, words]


def argv_of(
    task_dir: Path,
    options: ShimOptions,
    rlimits: Rlimits = resource.getrlimit,
    limits: TaskLimits = NO_LIMITS,
) -> list[str]:
    """Return the command that creates the unit of a task. Raises SpawnError."""
    # The unit contains no other cgroup, so a weight for the task has no effect.
    request = request_of(task_dir, options, replace(limits, cpu_weight=None))
    request["sigterm"] = True
    bounds = [f"{name}={_bounds(*rlimits(which))}" for name, which in _LIMITS.items()]
    bounds += properties_of(limits, options.processes_max)
    return [
        SYSTEMD_RUN,
        "--quiet",
        "--collect",
        "--no-ask-password",
        f"--unit={unit_of(task_dir.name)}",
        f"--slice={SLICE}",
        f"--description={description_of(task_dir)}",
        *(f"--property={text}" for text in (*PROPERTIES, *bounds)),
        "--",
        # Otherwise the manager would expand text that resembles a variable.
        *(word.replace("$", "$$") for word in command_of(request)),
    ]


class SystemdUnits:
    """Starts shims with `systemd-run`."""

    gives = False

    def __init__(self, options: ShimOptions | None = None) -> None:
        self._options = options or ShimOptions()
        self._room = asyncio.Semaphore(AT_ONCE)

    def use(self, options: ShimOptions) -> None:
        """Start later shims with these options."""
        self._options = options

    async def start(self) -> None:
        """Nothing to prepare."""

    async def spawn(
        self,
        task_dir: Path,
        given: socket.socket | None = None,  # noqa: ARG002  for other backends
        limits: TaskLimits = NO_LIMITS,
    ) -> int:
        """Implement `Shims.spawn` of agent/shims/backend.py."""
        argv = argv_of(task_dir, self._options, limits=limits)
        task = task_dir.name
        try:
            await asyncio.to_thread(task_dir.mkdir, mode=0o700, exist_ok=True)
            async with self._room:
                code, said = await run(argv, START_S + 10.0)
        except TimeoutError as error:
            raise SpawnError(
                f"no shim for task {task}: systemd does not start its unit {unit_of(task)}; is "
                "this node overloaded?"
            ) from error
        except OSError as error:
            raise SpawnError(f"no shim for task {task}: {error.strerror}") from error
        if code != 0:
            owned = await asyncio.to_thread(_owned, task_dir)
            why = f"{task_dir} belongs to a shim that is still alive" if owned else said
            raise SpawnError(f"no shim for task {task}: {why}")
        try:
            return await asyncio.to_thread(_pid, task_dir)
        except OSError as error:
            raise SpawnError(
                f"no shim for task {task}: it exited at its start; "
                f"see `journalctl -u {unit_of(task)}`"
            ) from error

    async def close(self) -> None:
        """Nothing to stop: systemd owns the shims."""


async def run(argv: list[str], patience_s: float) -> tuple[int, str]:
    """Run a systemd command. Returns its exit code and its output as one line.

    Raises OSError and TimeoutError.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "SYSTEMD_COLORS": "0"},
    )
    try:
        async with asyncio.timeout(patience_s):
            _, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None
    said = " ".join(err.decode(errors="replace").split())
    return process.returncode, said[:_WORDS_MAX] or f"{argv[0]} ended with {process.returncode}"


def _bounds(soft: int, hard: int) -> str:
    words = ["infinity" if it == resource.RLIM_INFINITY else str(it) for it in (soft, hard)]
    return ":".join(words)


def _owned(task_dir: Path) -> bool:
    """True if a living shim owns the directory."""
    try:
        folder = os.open(task_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        os.close(exit_record.take_lock(folder))
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(folder)
    return False


def _pid(task_dir: Path) -> int:
    """Return the pid of the shim that listens there. Raises OSError."""
    folder = os.open(task_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            # A socket path has at most 107 bytes, a directory path 4095.
            asking.connect(f"/proc/self/fd/{folder}/{exit_record.SOCKET}")
            peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    finally:
        os.close(folder)
    pid: int = _PEER.unpack(peer)[0]
    return pid

"""The status document of a task. A shim always sends it whole, so that readers may miss some."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping

# The version of the protocol with the agent.
VERSION = 1


class Phase(enum.StrEnum):
    """The phase of a task. STUCK: killed, but the kernel still holds a process."""

    NEW = "new"
    PREPARING = "preparing"
    PREPARED = "prepared"
    REFUSED = "refused"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    CLEANED = "cleaned"
    STUCK = "stuck"


class RefusalCode(enum.StrEnum):
    NO_FOLDER = "no_folder"
    NO_PYTHON = "no_python"
    NO_TORCH = "no_torch"
    SETUP_FAILED = "setup_failed"
    USER_UNKNOWN = "user_unknown"
    ROOT_REFUSED = "root_refused"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    SPAWN_FAILED = "spawn_failed"
    NO_SPACE = "no_space"
    PORT_TAKEN = "port_taken"


class StoppedBy(enum.StrEnum):
    """Why the shim ended a task. Null in the document if the task ended by itself first."""

    STOP = "stop"
    KILL = "kill"
    LEASE = "lease"
    # No agent connected to the shim before a program was started.
    ABANDONED = "abandoned"
    # Written by the agent into the record of a shim that died before its task.
    SHIM_LOST = "shim_lost"


class Exit:
    """How a process ended: an exit code or a signal, never both."""

    __slots__ = ("code", "signal")

    def __init__(self, code: int | None, signal: int | None) -> None:
        self.code = code
        self.signal = signal

    @classmethod
    def from_wait(cls, status: int) -> Exit:
        """From the status word of waitpid."""
        value = os.waitstatus_to_exitcode(status)
        return cls(value, None) if value >= 0 else cls(None, -value)

    @property
    def failed(self) -> bool:
        return self.code != 0

    def words(self) -> str:
        if self.signal is not None:
            return f"was killed by signal {self.signal}"
        return f"exited with code {self.code}"

    def document(self) -> dict[str, object]:
        return {"code": self.code, "signal": self.signal}


class Rank:
    """One training process. Times are seconds since the program started."""

    __slots__ = (
        "at_s",
        "disk_full",
        "error",
        "exit",
        "kernel",
        "local_rank",
        "oom",
        "pid",
        "rank",
        "stderr",
        "stderr_tail",
        "stdout",
        "stopped",
        "warned",
    )

    def __init__(self, rank: int, local_rank: int, stdout: str, stderr: str) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self.exit: Exit | None = None
        self.at_s = 0.0
        self.error: str | None = None
        self.stderr_tail: str | None = None
        self.stopped = False
        self.oom = False
        self.disk_full = False
        self.kernel: str | None = None
        # Number of the last warning it got. Internal, so not in the document.
        self.warned = 0

    @property
    def alive(self) -> bool:
        return self.pid is not None and self.exit is None

    def document(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": self.pid,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "exit": None if self.exit is None else {**self.exit.document(), "at_s": self.at_s},
            "error": self.error,
            "stderr_tail": self.stderr_tail,
            "stopped": self.stopped,
            "oom": self.oom,
            "disk_full": self.disk_full,
            "kernel": self.kernel,
        }


class Status:
    """The document of one task, as fields."""

    def __init__(self, task: str, log_dir: str) -> None:
        self.task = task
        self.phase = Phase.NEW
        self.refusal: tuple[RefusalCode, str] | None = None
        self.complaint: str | None = None
        self.fingerprint: dict[str, str] | None = None
        # Seconds from the start of the bootstrap to its hello: the time to import torch on this
        # node.
        self.boot_s: float | None = None
        self.listening = False
        self.log_dir = log_dir
        self.ranks: dict[int, Rank] = {}
        self.streams: list[dict[str, object]] = []
        self.exit: Exit | None = None
        self.stopped_by: StoppedBy | None = None
        self.first_failed: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.survivors: list[int] = []
        self.doomed = False
        self.oom_kills: int | None = None
        self.launcher_said: str | None = None
        self.signalled = 0

    def running_s(self, moment: float) -> float | None:
        if self.started_at is None:
            return None
        return round((self.ended_at or moment) - self.started_at, 6)

    def document(self, moment: float) -> dict[str, object]:
        """The whole document; `moment` on the clock of `loop.now`."""
        refusal = None
        if self.refusal is not None:
            refusal = {"code": self.refusal[0], "text": self.refusal[1]}
        return {
            "v": VERSION,
            "task": self.task,
            "phase": self.phase,
            "refusal": refusal,
            "complaint": self.complaint,
            "fingerprint": self.fingerprint,
            "boot_s": self.boot_s,
            "listening": self.listening,
            "log_dir": self.log_dir,
            "ranks": [rank.document() for rank in self.ranks.values()],
            "streams": self.streams,
            "exit": None if self.exit is None else self.exit.document(),
            "stopped_by": self.stopped_by,
            "first_failed": self.first_failed,
            "running_s": self.running_s(moment),
            "survivors": self.survivors,
            "doomed": self.doomed,
            "oom_kills": self.oom_kills,
            "launcher_said": self.launcher_said,
            "signalled": self.signalled,
        }


def encoded(document: Mapping[str, object]) -> bytes:
    """The document as UTF-8, in one line.

    Invalid characters become question marks, because readers would refuse the whole document.
    Python uses lone surrogates for undecodable bytes of file names.
    """
    return json.dumps(document, ensure_ascii=False).encode(errors="replace")

"""The protocol between agent and shim: JSON lines on the shim's socket.

The shim uses the standard library only and writes the same documents by hand (agent/shim/status.py,
agent/shim/commands.py); its tests decode them with these types. Every status is complete, and
commands may be repeated. Fields that a newer shim may extend with new values are plain strings, so
that an older agent can still decode them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.protocol.ids import TaskId
from muster.protocol.outcome import ExitStatus

LEASE_GRACE_S: Final = 10.0
"""The time a job gets to end by itself when its lease expires, regardless of its own grace. The
coordinator places a lost node's job elsewhere `lease_margin_s` after the lease: well before that,
the kill must have finished."""


class ShimPhase(enum.Enum):
    """The progress of a task. Terminal phases never change again, and their exit record is on
    disk."""

    NEW = "new"
    PREPARING = "preparing"
    PREPARED = "prepared"
    REFUSED = "refused"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    CLEANED = "cleaned"
    STUCK = "stuck"

    @property
    def terminal(self) -> bool:
        return self in (ShimPhase.REFUSED, ShimPhase.CLEANED)


class StoppedBy(enum.StrEnum):
    """The cause of a task's end, if it did not end by itself."""

    STOP = "stop"
    KILL = "kill"
    LEASE = "lease"
    ABANDONED = "abandoned"
    SHIM_LOST = "shim_lost"


class StreamName(enum.StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    LAUNCHER = "launcher"
    SETUP = "setup"


class ShimRefusal(msgspec.Struct, frozen=True):
    """`code` is a RefusalCode (muster.protocol.refusal_codes), `text` a sentence for a person."""

    code: str
    text: str


class ShimFingerprint(msgspec.Struct, frozen=True):
    """Versions in the job's interpreter; None if this build of torch lacks the library."""

    python: str
    torch: str
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None


class ShimExit(msgspec.Struct, frozen=True):
    """The exit of a process: a code or a signal. For ranks, `at_s` seconds after the start."""

    code: int | None = None
    signal: int | None = None
    at_s: float | None = None

    @property
    def status(self) -> ExitStatus:
        return ExitStatus(self.code, self.signal)


class ShimRank(msgspec.Struct, frozen=True):
    """One rank. Paths are relative to the task's directory.

    For a failed rank, `error` is the error that torch recorded, else the tail of its standard
    error; `stderr_tail` is that tail if `error` is something else. `stopped`: it ended after it was
    ordered to. `oom`: the kernel killed it for lack of memory. `kernel`: the kernel log's lines on
    that. `disk_full`: the task's disk was full when the rank ended.
    """

    rank: int
    local_rank: int = 0
    stdout: str = ""
    stderr: str = ""
    pid: int | None = None
    exit: ShimExit | None = None
    error: str | None = None
    stderr_tail: str | None = None
    stopped: bool = False
    oom: bool = False
    disk_full: bool = False
    kernel: str | None = None


class ShimStream(msgspec.Struct, frozen=True):
    """A file to ship: `stream` is a StreamName, `path` is relative to the task's directory."""

    stream: str
    path: str
    rank: int | None = None


class ShimStatus(msgspec.Struct, frozen=True):
    """The complete status of a shim's task.

    `exit` is the main program's; `stopped_by` is a StoppedBy. `survivors` are pids that SIGKILL did
    not end; `doomed`: none of them will ever run its program again. `complaint` is about a command
    that the shim could not read. `boot_s` is the time from the bootstrap's start to its hello, most
    of it the import of torch. `launcher_said` is the end of a failed launcher's log. `signalled` is
    the number of the last `signal` that was carried out.
    """

    task: TaskId
    phase: ShimPhase
    v: int = 1
    refusal: ShimRefusal | None = None
    complaint: str | None = None
    fingerprint: ShimFingerprint | None = None
    boot_s: float | None = None
    log_dir: str = ""
    listening: bool = False
    ranks: tuple[ShimRank, ...] = ()
    streams: tuple[ShimStream, ...] = ()
    exit: ShimExit | None = None
    stopped_by: str | None = None
    first_failed: int | None = None
    running_s: float | None = None
    survivors: tuple[int, ...] = ()
    doomed: bool = False
    oom_kills: int | None = None
    launcher_said: str | None = None
    signalled: int = 0


class ShimUser(msgspec.Struct, frozen=True):
    """An account of this node, by name."""

    name: str


class ShimHosts(msgspec.Struct, frozen=True):
    """Mount the file `source` over `target` for the job alone."""

    source: str
    target: str


class _Command(msgspec.Struct, frozen=True, tag_field="cmd"):
    """A command to a shim. Every command may be repeated.

    Defaults are written out, because the shim has some of its own.
    """


class ShimPrepare(_Command, frozen=True, tag="prepare"):
    """Refuse or get ready. `cwd` None: the user's home. `python`: interpreter, venv or conda
    prefix; None: the first on PATH."""

    launcher: str = "none"
    cwd: str | None = None
    python: str | None = None
    setup: Sequence[str] | None = None
    env: dict[str, str] = {}
    user: ShimUser | None = None
    allow_root: bool = False
    no_new_privileges: bool = False
    setup_timeout_s: float | None = None
    bootstrap_timeout_s: float | None = None
    hosts: ShimHosts | None = None


class ShimHostfile(_Command, frozen=True, tag="hostfile"):
    """Write the task's host file; a later start finds it there."""

    text: str


class ShimStart(_Command, frozen=True, tag="start"):
    """Open the gate. `argv`: the program, or torchrun's arguments, or, with `interpreter`,
    arguments for the job's Python.

    `stop_signal` and `grace_s` are the job's own. They apply if the shim itself ends the ranks: one
    has failed, the launcher has died, or the lease has expired. `ranks`: start the program once per
    entry, with these additional variables.
    """

    argv: Sequence[str]
    env: dict[str, str] = {}
    listen_port: int | None = None
    grace_s: float | None = None
    stop_signal: str | None = None
    ranks: Sequence[dict[str, str]] = ()
    interpreter: bool = False


class ShimStop(_Command, frozen=True, tag="stop"):
    """Signal the ranks, wait for the whole process tree, kill the rest after `grace_s`."""

    signal: str = "SIGTERM"
    grace_s: float = 30.0


class ShimSignal(_Command, frozen=True, tag="signal"):
    """Signal the ranks once: a `number` that is not above the last one changes nothing.

    `ranks`: only these; empty means all. `late`: also ranks that start later.
    """

    signal: str
    number: int
    ranks: Sequence[int] = ()
    late: bool = True


class ShimKill(_Command, frozen=True, tag="kill"):
    """SIGKILL the whole process tree."""


class ShimLease(_Command, frozen=True, tag="lease"):
    """The task may run for `ttl_s` more seconds without another lease (0: forever). Then the shim
    sends the job's stop signal, and kills `grace_s` later."""

    ttl_s: float
    grace_s: float = LEASE_GRACE_S


class ShimRelease(_Command, frozen=True, tag="release"):
    """The coordinator has recorded the end: the shim removes its socket and exits."""


ShimCommand = (
    ShimPrepare
    | ShimHostfile
    | ShimStart
    | ShimStop
    | ShimSignal
    | ShimKill
    | ShimLease
    | ShimRelease
)

"""What the agent and a shim say to each other: JSON lines on the shim's socket.

The shim itself uses the standard library only and writes the same documents by hand
(agent/shim/status.py, agent/shim/commands.py); its tests decode them with these types. The status
is whole each time and commands may be repeated. Words are text here where an older agent may meet
those of a newer shim.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.protocol.ids import TaskId
from muster.protocol.outcome import ExitStatus

LEASE_GRACE_S: Final = 10.0
"""What a job gets to end by itself when its lease is over, whatever it asked for. The coordinator
gives a lost node's job elsewhere `lease_margin_s` after the lease: well before that, the kill must
have done its work."""


SIGNALS_RANKS: Final = 2
"""Shims of an earlier version would take a signal to some ranks for one to all."""

WRITES_HOSTFILE: Final = 3
"""For shims of an earlier version the agent does it."""


class ShimPhase(enum.Enum):
    """How far a task is. Those that are terminal change no more, and their record is on disk."""

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
    """Who ended a task, where it did not end by itself."""

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
    """Versions in the job's interpreter; None: not in this build of torch."""

    python: str
    torch: str
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None


class ShimExit(msgspec.Struct, frozen=True):
    """How a process ended: a code or a signal; for ranks `at_s` seconds after the start."""

    code: int | None = None
    signal: int | None = None
    at_s: float | None = None

    @property
    def status(self) -> ExitStatus:
        return ExitStatus(self.code, self.signal)


class ShimRank(msgspec.Struct, frozen=True):
    """One rank. Paths are relative to the task's folder.

    Of one that failed, `error` is what torch recorded, else the tail of its standard error, and
    `stderr_tail` that tail where `error` is not. `stopped`: it ended after it was told to. `oom`:
    the kernel killed it for memory. `kernel`: what its log says of that. `disk_full`: as it ended,
    its task's disk was full.
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
    """A file to tail: `stream` is a StreamName, `path` relative to the task's folder."""

    stream: str
    path: str
    rank: int | None = None


class ShimStatus(msgspec.Struct, frozen=True):
    """All that a shim knows of its task.

    `exit` is the main program's; `stopped_by` a StoppedBy; `survivors` are pids that SIGKILL did
    not end, and `doomed` says that none of them will ever run its program again; `complaint` is
    about a command that could not be read. `boot_s` is from the bootstrap's start to its hello,
    most of it the import of torch. `launcher_said` is the end of the log of a launcher that failed;
    `signalled` the number of the last `signal` that was carried out.
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
    """For the job, and nobody else, the file `source` is `target`."""

    source: str
    target: str


class _Command(msgspec.Struct, frozen=True, tag_field="cmd"):
    """Something a shim is told. Every one may be sent again.

    Defaults are written out: the shim has some of its own.
    """


class ShimPrepare(_Command, frozen=True, tag="prepare"):
    """Refuse or get ready. `cwd` None: the user's home. `python`: interpreter, venv or conda
    prefix; None: PATH's.
    """

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
    """Write the task's host file; a start that comes after it finds it there. Only for shims of
    `WRITES_HOSTFILE`."""

    text: str


class ShimStart(_Command, frozen=True, tag="start"):
    """Open the gate. `argv`: the program, or torchrun's arguments, or with `interpreter` words
    for the job's Python.

    `stop_signal` and `grace_s` are the job's own, for an end that nobody commands: the other ranks
    of this node are to go, as one has failed, or their launcher has died, or the lease is over.
    `ranks`: start the program so often, each time with these variables more.
    """

    argv: Sequence[str]
    env: dict[str, str] = {}
    listen_port: int | None = None
    grace_s: float | None = None
    stop_signal: str | None = None
    ranks: Sequence[dict[str, str]] = ()
    interpreter: bool = False


class ShimStop(_Command, frozen=True, tag="stop"):
    """Signal the ranks, wait for the whole tree, kill what is left after `grace_s`."""

    signal: str = "SIGTERM"
    grace_s: float = 30.0


class ShimSignal(_Command, frozen=True, tag="signal"):
    """Signal the ranks, once: a `number` that is not above the last one changes nothing.

    `ranks`: only those; none: all. `late`: those that begin later, too.
    """

    signal: str
    number: int
    ranks: Sequence[int] = ()
    late: bool = True


class ShimKill(_Command, frozen=True, tag="kill"):
    """SIGKILL for the whole tree."""


class ShimLease(_Command, frozen=True, tag="lease"):
    """The task may run for `ttl_s` more seconds without another lease (0: without end); then the
    shim sends the job's stop signal, and kills `grace_s` later.
    """

    ttl_s: float
    grace_s: float = LEASE_GRACE_S


class ShimRelease(_Command, frozen=True, tag="release"):
    """The end is recorded elsewhere: the shim removes its socket and goes."""


ShimCommand = ShimPrepare | ShimStart | ShimStop | ShimSignal | ShimKill | ShimLease | ShimRelease
"""What is told to shims of every version."""

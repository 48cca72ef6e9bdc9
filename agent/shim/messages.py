"""The messages between agent and shim, declared once for both: one JSON document a line.

Every command states a desired result, so repeating it does no harm. Every status is complete, so
readers may miss some. Fields that a newer shim may extend with new values are plain strings, so
that an older agent can still decode them.

Type checkers see dataclasses. The shim does not import `dataclasses`: for each shim that runs as a
unit, it would cost 20 ms and 2 MiB. In a shim, `message` only adds a constructor. In the agent,
agent/core/shim_protocol.py makes real dataclasses of these classes, which msgspec understands.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

TYPE_CHECKING = False
MESSAGES: list[type] = []
if TYPE_CHECKING:
    from dataclasses import dataclass as message
else:

    def message(kind):
        names = tuple(kind.__annotations__)
        defaults = {name: vars(kind)[name] for name in names if name in vars(kind)}

        def construct(self, *values, **fields):
            self.__dict__.update(defaults, **dict(zip(names, values, strict=False)), **fields)

        kind.__init__ = construct
        MESSAGES.append(kind)
        return kind


# The version of the protocol.
VERSION = 1
TORCHRUN = "torchrun"
PROCESSES = "processes"
NONE = "none"
SETUP_TIMEOUT_S = 3600.0
# A cold torch on a network file system has been seen to take minutes.
BOOTSTRAP_TIMEOUT_S = 600.0
GRACE_S = 30.0
# The time a job gets to end by itself when its lease expires, regardless of its own grace. The
# coordinator places a lost node's job elsewhere `lease_margin_s` after the lease: well before that,
# the kill must have finished.
LEASE_GRACE_S = 10.0


# --- the status of a task ---------------------------------------------------------------------


class ShimPhase(enum.StrEnum):
    """The progress of a task. Terminal phases never change again, and their exit record is on disk.

    STUCK: killed, but the kernel still holds a process.
    """

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
    """The cause of a task's end, if it did not end by itself first."""

    STOP = "stop"
    KILL = "kill"
    LEASE = "lease"
    LIMIT = "limit"
    # No agent connected to the shim before a program was started.
    ABANDONED = "abandoned"
    # Written by the agent into the record of a shim that died before its task.
    SHIM_LOST = "shim_lost"


class StreamName(enum.StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    LAUNCHER = "launcher"
    SETUP = "setup"


@message
class ShimRefusal:
    """`code` is a RefusalCode (muster.protocol.refusal_codes), `text` a sentence for a person."""

    code: str
    text: str


@message
class ShimFingerprint:
    """Versions in the job's interpreter; None if this build of torch lacks the library."""

    python: str
    torch: str
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None


@message
class ShimStartMethod:
    """The start of ranks by the bootstrap: `method` is fork or exec; `why` is the reason for exec.

    Seconds: the import of torch, the import of the job's modules, the proof that forks are safe,
    and the fork of the first rank.
    """

    method: str
    why: str = ""
    import_s: float = 0.0
    preload_s: float = 0.0
    check_s: float = 0.0
    fork_s: float = 0.0


@message
class ShimExit:
    """The exit of a process: a code or a signal, never both. For ranks, `at_s` seconds after the
    start."""

    code: int | None = None
    signal: int | None = None
    at_s: float | None = None

    @property
    def failed(self) -> bool:
        return self.code != 0

    def words(self) -> str:
        if self.signal is not None:
            return f"was killed by signal {self.signal}"
        return f"exited with code {self.code}"


@message
class ShimRank:
    """A rank. Paths are relative to the task's directory.

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

    @property
    def alive(self) -> bool:
        return self.pid is not None and self.exit is None


@message
class ShimStream:
    """A file to ship: `stream` is a StreamName, `path` is relative to the task's directory."""

    stream: str
    path: str
    rank: int | None = None


@message
class ShimStatus:
    """The complete status of a shim's task.

    `exit` is the main program's; `stopped_by` is a StoppedBy. `survivors` are pids that SIGKILL did
    not end; `doomed`: none of them will ever run its program again; without survivors, no process
    is left, but the exit record cannot be written. `complaint` is about a command that the shim
    could not read. `boot_s` is the time from the bootstrap's start to its hello, most
    of it the import of torch. `launcher_said` is the end of a failed launcher's log. `signalled` is
    the number of the last `signal` that was carried out. `start_method` is None until torchrun
    starts its first rank. `warned_s` is the `warn_s` of the time limit's warning that the ranks
    got. `memory_max` is the task's memory limit in bytes, if processes were killed because it was
    reached.
    """

    task: str
    phase: ShimPhase
    v: int = VERSION
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
    start_method: ShimStartMethod | None = None
    warned_s: float | None = None
    memory_max: int | None = None


# --- commands to a shim -----------------------------------------------------------------------


@message
class ShimUser:
    """An account of this node, by name. It is refused if its uid is not `uid` (None: any)."""

    name: str
    uid: int | None = None


@message
class ShimHosts:
    """Mount the file `source` over `target` for the job alone."""

    source: str
    target: str


@message
class ShimPlaces:
    """Places of the job alone. `folder` is mounted over /tmp and /var/tmp, and memory over
    /dev/shm; "": the job has the machine's. Only the folders `shown` and `made` below them stay
    visible; missing ones of `made` are made. `hide`: processes of other users are invisible, and
    so is the system bus.
    """

    folder: str = ""
    shown: Sequence[str] = ()
    made: Sequence[str] = ()
    hide: bool = False


@message
class ShimFetch:
    """The program that fills the job's folder, before `setup`. Of the job's environment it has only
    the marks, besides `env`. `what` names it in a refusal.
    """

    argv: Sequence[str]
    env: dict[str, str]
    what: str = ""


@message
class ShimPrepare:
    """Refuse or get ready: do all that may be slow or fail, but start no program.

    `cwd` None: the user's home. `python`: interpreter, venv or conda prefix; None: the first on
    PATH.
    """

    cmd = "prepare"
    launcher: str = NONE
    cwd: str | None = None
    python: str | None = None
    setup: Sequence[str] | None = None
    env: dict[str, str] | None = None
    user: ShimUser | None = None
    allow_root: bool = False
    no_new_privileges: bool = False
    setup_timeout_s: float = SETUP_TIMEOUT_S
    bootstrap_timeout_s: float = BOOTSTRAP_TIMEOUT_S
    hosts: ShimHosts | None = None
    places: ShimPlaces | None = None
    fetch: ShimFetch | None = None


@message
class ShimHostfile:
    """Write the task's host file; a later start finds it there."""

    cmd = "hostfile"
    text: str = ""


@message
class ShimStart:
    """Open the gate. `argv`: the program, or torchrun's arguments, or, with `interpreter`,
    arguments for the job's Python.

    `stop_signal` and `grace_s` are the job's own. They apply if the shim itself ends the ranks: one
    has failed, the launcher has died, the time limit is over, or the lease has expired. `ranks`:
    start the program once per entry, with these additional variables.
    """

    cmd = "start"
    argv: Sequence[str] = ()
    env: dict[str, str] | None = None
    listen_port: int | None = None
    grace_s: float = GRACE_S
    stop_signal: str = "SIGTERM"
    ranks: Sequence[dict[str, str]] = ()
    interpreter: bool = False


@message
class ShimStop:
    """Signal the ranks, wait for the whole process tree, kill the rest after `grace_s`."""

    cmd = "stop"
    signal: str = "SIGTERM"
    grace_s: float = GRACE_S


@message
class ShimSignal:
    """Signal the ranks once: a `number` that is not above the last one changes nothing.

    `ranks`: only these; empty means all. `late`: also ranks that start later.
    """

    cmd = "signal"
    signal: str
    number: int
    ranks: Sequence[int] = ()
    late: bool = True

    def for_rank(self, rank: int) -> bool:
        return not self.ranks or rank in self.ranks


@message
class ShimKill:
    """SIGKILL the whole process tree."""

    cmd = "kill"


@message
class ShimLease:
    """The task may run for `ttl_s` more seconds without another lease (0: forever), but not beyond
    `until` on CLOCK_BOOTTIME, because the shim may read this late. Then the shim sends the job's
    stop signal, and kills `grace_s` later."""

    cmd = "lease"
    ttl_s: float = 0.0
    grace_s: float = LEASE_GRACE_S
    until: float | None = None


@message
class ShimLimit:
    """The time limit of the task, instead of that of a lower `number`. The shim ends the program
    `limit_s` after its start, and sends its ranks `warn_signal` after `warn_s`."""

    cmd = "limit"
    number: int
    limit_s: float | None = None
    warn_s: float | None = None
    warn_signal: str | None = None


@message
class ShimRelease:
    """The coordinator has recorded the end: the shim removes its socket and exits."""

    cmd = "release"


ShimCommand = (
    ShimPrepare
    | ShimHostfile
    | ShimStart
    | ShimStop
    | ShimSignal
    | ShimKill
    | ShimLease
    | ShimLimit
    | ShimRelease
)

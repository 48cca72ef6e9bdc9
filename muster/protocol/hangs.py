"""Whether the ranks of a job move: what a node sees of each, its stacks, and the verdict.

Ages are in seconds as of the message that holds them. None is "it moves", never 0.
"""

from __future__ import annotations

import enum

import msgspec

FRAMES_MAX = 40
"""Of one stack, the innermost."""


class Hang(enum.Enum):
    """What is done about a job that hangs. `DUMP`: all threads and NCCL's flight recorder are kept;
    `RESTART`: and the attempt ends, to be tried again."""

    NOTIFY = "notify"
    DUMP = "dump"
    RESTART = "restart"


class Doing(enum.Enum):
    """What the kernel says of a process. DISK: a disk or a file server keeps it waiting."""

    RUNS = "runs"
    SLEEPS = "sleeps"
    DISK = "disk"
    STOPPED = "stopped"
    TRACED = "traced"
    GONE = "gone"


class Sign(enum.Enum):
    """What shows that a rank moves."""

    LOG = "log"
    NETWORK = "network"
    HCA = "hca"
    DISK = "disk"
    CPU = "cpu"


class RankActivity(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank. `still_s`: for how long it has moved no bytes; `idle_s`: for how long it has not
    computed either. The gaps are the longest of both kinds after which it went on by itself; they
    count once it is `learned`. `signs` are those that it has ever given, `where` is the kernel
    function in which it waits. For a rank that has ended (GONE) both ages count from its end, as
    far as its agent knows.
    """

    rank: int
    learned: bool = False
    still_s: float | None = None
    idle_s: float | None = None
    still_gap_s: float = 0.0
    idle_gap_s: float = 0.0
    doing: Doing = Doing.RUNS
    where: str = ""
    signs: tuple[Sign, ...] = ()

    def later(self, seconds: float) -> RankActivity:
        """The same, if nothing has changed for so long."""
        return msgspec.structs.replace(
            self,
            still_s=None if self.still_s is None else self.still_s + seconds,
            idle_s=None if self.idle_s is None else self.idle_s + seconds,
        )


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A line of a stack: function, file, line."""

    name: str
    file: str
    line: int = 0


class ThreadStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The innermost frame is the first. `gil`: it holds the interpreter's lock."""

    name: str
    frames: tuple[Frame, ...] = ()
    gil: bool = False


class RankStacks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The main thread is the first; `problem`: why there is none."""

    rank: int
    pid: int = 0
    threads: tuple[ThreadStack, ...] = ()
    problem: str = ""

    @property
    def main(self) -> tuple[Frame, ...]:
        """Frames of the main thread; () where they are not known."""
        return self.threads[0].frames if self.threads else ()


class StackGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ranks whose main threads stand at the same lines; those with the fewest are the odd ones.

    `place` is the innermost line of the job's own code, as `train.py:41`; `waits`: it is in a call
    that waits for other ranks.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    place: str = ""
    waits: bool = False
    frames: tuple[Frame, ...] = ()
    problem: str = ""


class RecordedRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NCCL's flight recorder of a rank says of its last collectives, in words."""

    rank: int
    enqueued: int = 0
    completed: int = 0
    last: str = ""
    problem: str = ""


class HangKind(enum.Enum):
    """SLOW: nothing is heard of it, but it computes, or waits for a disk or a file server."""

    HUNG = "hung"
    SLOW = "slow"


class HangVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict with all that it rests on. `quiet_s`: for how long the job had not moved, of
    `limit_s` after which that is told; `rank`, `node` and `place` are of the odd rank. `firm`:
    where every rank stands is known, or the odd one is stopped; what is not is never restarted.
    """

    kind: HangKind
    text: str
    quiet_s: float
    limit_s: float
    firm: bool = False
    rank: int | None = None
    node: str = ""
    place: str = ""
    ranks: tuple[RankActivity, ...] = ()
    groups: tuple[StackGroup, ...] = ()
    threads: tuple[RankStacks, ...] = ()
    recorded: tuple[RecordedRank, ...] = ()
    notes: tuple[str, ...] = ()


class StacksView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where all ranks of a job stand now. `notes`: what is missing, and what to do about it."""

    job: int
    attempt: int
    groups: tuple[StackGroup, ...] = ()
    ranks: tuple[RankStacks, ...] = ()
    activity: tuple[RankActivity, ...] = ()
    notes: tuple[str, ...] = ()

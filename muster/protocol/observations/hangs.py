"""Hang detection: the activity of each rank on a node, its stacks, and the verdict.

Ages are in seconds at the time of the message. A moving rank has None, never 0.
"""

from __future__ import annotations

import enum

import msgspec

FRAMES_MAX = 40
"""Limit of frames per stack; the innermost are kept."""


class Hang(enum.Enum):
    """Action on a hanging job. `DUMP`: store all threads and NCCL's flight recorder. `RESTART`:
    also end the attempt, and retry.
    """

    NOTIFY = "notify"
    DUMP = "dump"
    RESTART = "restart"


class Doing(enum.Enum):
    """State of a process according to the kernel. DISK: it waits for a disk or a file server."""

    RUNS = "runs"
    SLEEPS = "sleeps"
    DISK = "disk"
    STOPPED = "stopped"
    TRACED = "traced"
    GONE = "gone"


class Sign(enum.Enum):
    """Evidence that a rank moves."""

    LOG = "log"
    NETWORK = "network"
    HCA = "hca"
    DISK = "disk"
    CPU = "cpu"


class RankActivity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Activity of one rank. `still_s`: how long it has moved no bytes. `idle_s`: how long it has
    not computed either. The gaps are the longest of both kinds after which it continued by itself;
    they count once `learned`. `signs` are all signs that it has ever shown; `where` is the kernel
    function in which it waits. For an ended rank (GONE), both ages count from its end, as far as
    its agent knows.
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
        """Return the activity after this many more seconds without a change."""
        return msgspec.structs.replace(
            self,
            still_s=None if self.still_s is None else self.still_s + seconds,
            idle_s=None if self.idle_s is None else self.idle_s + seconds,
        )


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a stack: function, file, line."""

    name: str
    file: str
    line: int = 0


class ThreadStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thread's stack, innermost frame first. `gil`: it holds the interpreter's lock."""

    name: str
    frames: tuple[Frame, ...] = ()
    gil: bool = False


class RankStacks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stacks of a rank, the main thread first. `problem`: why there is none."""

    rank: int
    pid: int = 0
    threads: tuple[ThreadStack, ...] = ()
    problem: str = ""

    @property
    def main(self) -> tuple[Frame, ...]:
        """Frames of the main thread; () if unknown."""
        return self.threads[0].frames if self.threads else ()


class StackGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ranks whose main threads have the same stack. The smallest groups are the odd ones.

    `place` is the innermost line of the job's own code, like `train.py:41`. `waits`: it is in a
    call that waits for other ranks.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    place: str = ""
    waits: bool = False
    frames: tuple[Frame, ...] = ()
    problem: str = ""


class RecordedRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """Last collectives of a rank from NCCL's flight recorder, as text."""

    rank: int
    enqueued: int = 0
    completed: int = 0
    last: str = ""
    problem: str = ""


class HangKind(enum.Enum):
    """Kind of a verdict. SLOW: no progress is reported, but it computes, or waits for a disk or a
    file server.
    """

    HUNG = "hung"
    SLOW = "slow"


class HangVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict with its evidence. `quiet_s`: how long the job had not moved; `limit_s`: the limit
    for reporting. `rank`, `node` and `place` are of the odd rank. `firm`: the stack of every rank
    is known, or the odd one is stopped; other verdicts never restart a job.
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
    """Current stacks of all ranks of a job. `notes`: missing parts, and what to do about them."""

    job: int
    attempt: int
    groups: tuple[StackGroup, ...] = ()
    ranks: tuple[RankStacks, ...] = ()
    activity: tuple[RankActivity, ...] = ()
    notes: tuple[str, ...] = ()

"""What the coordinator is to do: the outputs of `decide`, carried out after their facts are on
disk."""

from __future__ import annotations

import enum
from typing import Final, NewType

import msgspec

from muster.protocol.control_channel import Command, Refused
from muster.protocol.hangs import StacksView
from muster.protocol.ids import JobId, NodeName, SessionId

RequestId = NewType("RequestId", int)


class TimerKind(enum.Enum):
    NODE = "node"
    WORD = "word"
    PREPARE = "prepare"
    REFUSED = "refused"
    ARRANGE = "arrange"
    START = "start"
    BLAME = "blame"
    TRAFFIC = "traffic"
    WARN = "warn"
    LIMIT = "limit"
    RETRY = "retry"
    DRAIN = "drain"
    HANG = "hang"
    LOOK = "look"
    IDLE = "idle"


class Timer(msgspec.Struct, frozen=True):
    """A name for a moment. Firing is an input; a stale one is recognised, never cancelled."""

    kind: TimerKind
    node: NodeName = NodeName("")
    job: JobId = JobId(0)
    attempt: int = 0


class Send(msgspec.Struct, frozen=True):
    """To the node's current connection, if it has one."""

    node: NodeName
    session: SessionId
    command: Command


class RefuseSession(msgspec.Struct, frozen=True):
    """Say why, then close."""

    session: SessionId
    refused: Refused


class CloseSession(msgspec.Struct, frozen=True):
    session: SessionId
    why: str


class SetTimer(msgspec.Struct, frozen=True):
    """Fire once at `at` (monotonic seconds); setting it again moves it."""

    timer: Timer
    at: float


class Submitted(msgspec.Struct, frozen=True):
    """`created` is false where the idempotency key had made this job before."""

    job: JobId
    created: bool


class Cancelled(msgspec.Struct, frozen=True):
    """`note`: what became of the grace asked for, where the job was being stopped already."""

    job: JobId
    already_ended: bool
    note: str = ""


CHANGED: Final = "changed"
"""Code of a Declined: the job is not any more as whoever asks last saw it."""
DISK_FULL: Final = "disk_full"
"""Code of a Declined: there is no room to write it down."""


SEARCH_AGAIN: Final = "search_again"
"""Code of a Declined: jobs went to the archive after it was searched for the idempotency key."""
UNKNOWN_NODE: Final = "unknown_node"
"""Code of a Declined: no node of that name ever joined."""
UNKNOWN_JOB: Final = "unknown_job"
"""Code of a Declined: it is not among the jobs of the state."""


class Changed(msgspec.Struct, frozen=True):
    """`anything` is false where all was so already."""

    job: JobId
    anything: bool


class Signalled(msgspec.Struct, frozen=True):
    """`away` are nodes that get it when they are back."""

    job: JobId
    nodes: tuple[NodeName, ...]
    away: tuple[NodeName, ...]


class NodeServiceChanged(msgspec.Struct, frozen=True):
    """A node is out of service, or in it again; `anything` is false where all was so already."""

    node: NodeName
    anything: bool


class Declined(msgspec.Struct, frozen=True):
    """The request cannot be met: `code` is stable, `text` a sentence, `hint` what to do next."""

    code: str
    text: str
    hint: str = ""


def unknown_job(job: JobId) -> Declined:
    """The answer to a request for a job that does not exist."""
    return Declined(UNKNOWN_JOB, f"there is no job {job}", "list the jobs with: muster ps -a")


class Stacks(msgspec.Struct, frozen=True):
    """Where the ranks of a job stand."""

    view: StacksView


Result = Submitted | Cancelled | Changed | Signalled | NodeServiceChanged | Stacks | Declined


class Answer(msgspec.Struct, frozen=True):
    """Resolve a request; what it promises is on disk."""

    request: RequestId
    result: Result


Effect = Send | RefuseSession | CloseSession | SetTimer | Answer

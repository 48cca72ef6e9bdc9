"""Effects: the outputs of `decide`, carried out after their facts are on disk."""

from __future__ import annotations

import enum
from typing import Final, NewType

import msgspec

from muster.protocol.ids import JobId, NodeName, SessionId
from muster.protocol.link.control_channel import Command, Refused
from muster.protocol.observations.hangs import StacksView

RequestId = NewType("RequestId", int)


class TimerKind(enum.Enum):
    NODE = "node"
    PEER_REPORT = "peer_report"
    PREPARE = "prepare"
    REFUSED = "refused"
    ARRANGE = "arrange"
    START = "start"
    FAILURE_CAUSE = "failure_cause"
    TRAFFIC = "traffic"
    LIMIT = "limit"
    RETRY = "retry"
    DRAIN = "drain"
    HANG = "hang"
    STACKS = "stacks"
    IDLE = "idle"
    QUEUE = "queue"


class Timer(msgspec.Struct, frozen=True):
    """The name of a timer. Firing is an input; a stale timer is recognised, never cancelled."""

    kind: TimerKind
    node: NodeName = NodeName("")
    job: JobId = JobId(0)
    attempt: int = 0


class Send(msgspec.Struct, frozen=True):
    """Send to the node's current connection, if it has one."""

    node: NodeName
    session: SessionId
    command: Command


class RefuseSession(msgspec.Struct, frozen=True):
    """Send the reason, then close the connection."""

    session: SessionId
    refused: Refused


class CloseSession(msgspec.Struct, frozen=True):
    session: SessionId
    why: str


class SetTimer(msgspec.Struct, frozen=True):
    """Fire once at `at` (monotonic seconds). Setting the timer again moves it."""

    timer: Timer
    at: float


class Submitted(msgspec.Struct, frozen=True):
    """`created` is false if an earlier submit with the same idempotency key created the job."""

    job: JobId
    created: bool


class Cancelled(msgspec.Struct, frozen=True):
    """`note`: the outcome for the requested grace period, if the job was already being stopped."""

    job: JobId
    already_ended: bool
    note: str = ""


CHANGED: Final = "changed"
"""Code of a Declined: the job has changed since the client last read it."""
CHANGED_TOO_OFTEN: Final = "changed_too_often"
"""Code of a Declined: users have changed the job as often as its history may have it."""
SIGNED_TOO_OFTEN: Final = "signed_too_often"
"""Code of a Declined: the node's certificate has just been renewed."""
DISK_FULL: Final = "disk_full"
"""Code of a Declined: the journal's disk is full."""
TOO_MANY_BYTES: Final = "too_many_bytes"
"""Code of a Declined: the specs of the waiting jobs of this user, or of all, are too large."""
SEARCH_AGAIN: Final = "search_again"
"""Code of a Declined: jobs were archived after the search for the idempotency key."""
UNKNOWN_NODE: Final = "unknown_node"
"""Code of a Declined: no node of that name has joined."""
UNKNOWN_USER: Final = "unknown_user"
UNKNOWN_TOKEN: Final = "unknown_token"  # noqa: S105 - a code
UNKNOWN_JOB: Final = "unknown_job"
UNAUTHORIZED: Final = "unauthorized"
INTERNAL: Final = "internal"
"""Code of a Declined: the job is not in the state."""


class Changed(msgspec.Struct, frozen=True):
    """`anything` is false if nothing had to change."""

    job: JobId
    anything: bool


class Signalled(msgspec.Struct, frozen=True):
    """`away`: the nodes that get the signal when they reconnect."""

    job: JobId
    nodes: tuple[NodeName, ...]
    away: tuple[NodeName, ...]


class NodeServiceChanged(msgspec.Struct, frozen=True):
    """A node was drained, resumed or removed. `anything` is false if nothing had to change."""

    node: NodeName
    anything: bool


class PeopleChanged(msgspec.Struct, frozen=True):
    """A user or a credential was changed. `anything` is false if nothing had to change. `waits`: a
    node has joined, and waits for an operator.
    """

    anything: bool
    waits: bool = False


class Declined(msgspec.Struct, frozen=True):
    """The request cannot be met: `code` is stable, `text` a sentence, `hint` the next step."""

    code: str
    text: str
    hint: str = ""


def no_room(problem: str, refused: str) -> Declined:
    """Decline a request, because the rest of the journal's disk is reserved for the ends of jobs.

    `problem` names the disk, `refused` says what is not done.
    """
    return Declined(
        DISK_FULL,
        f"{refused} now: {problem}",
        "make room there and ask again; jobs continue and can be cancelled",
    )


def unknown_job(job: JobId) -> Declined:
    """The answer to a request for a job that does not exist."""
    return Declined(UNKNOWN_JOB, f"there is no job {job}", "list the jobs with: muster ps -a")


class Stacks(msgspec.Struct, frozen=True):
    """The stacks of a job's ranks."""

    view: StacksView


Result = (
    Submitted
    | Cancelled
    | Changed
    | Signalled
    | NodeServiceChanged
    | PeopleChanged
    | Stacks
    | Declined
)


class Answer(msgspec.Struct, frozen=True):
    """Answer a request. The facts that the answer relies on are on disk."""

    request: RequestId
    result: Result


Effect = Send | RefuseSession | CloseSession | SetTimer | Answer

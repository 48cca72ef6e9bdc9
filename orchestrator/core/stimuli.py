"""What may happen to the coordinator: the inputs of `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from muster.protocol.ids import JobId, NodeName, SessionId
from muster.protocol.messages import Heartbeat, Hello, StacksReport, TaskReport
from muster.spec.types import JobSpec
from orchestrator.core.actions import RequestId, Timer


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    """The journal has been replayed; this process is its `epoch`-th owner.

    `cluster` is the name it gives to a journal that has none yet, `networks` what its
    configuration says. `first_job`: no new job has a lesser number.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0


@dataclass(frozen=True, slots=True)
class SubmitReceived:
    """A checked job. `digest` identifies the body that came with the idempotency key `key`.

    `searched`: the archive was searched for the key, when so many jobs had been forgotten.
    """

    request: RequestId
    spec: JobSpec
    user: str
    key: str = ""
    digest: str = ""
    rerun_of: JobId | None = None
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class CancelReceived:
    request: RequestId
    job: JobId
    user: str
    reason: str = ""
    grace_s: float | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class ChangeReceived:
    """What is UNSET stays as it is. With `revisions`, only a job of one of them is changed."""

    request: RequestId
    job: JobId
    user: str
    priority: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    name: str | UnsetType = UNSET
    hold: bool | UnsetType = UNSET
    reason: str = ""
    revisions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """`signal` is a canonical name; to one node only, or one rank, where that is given."""

    request: RequestId
    job: JobId
    user: str
    signal: str
    node: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class StacksReceived:
    """Somebody wants to see where the ranks of a job stand."""

    request: RequestId
    job: JobId


@dataclass(frozen=True, slots=True)
class DrainReceived:
    """`deadline_s` and `after_checkpoint` as in NodeDrained."""

    request: RequestId
    node: NodeName
    user: str
    reason: str
    deadline_s: float | None = None
    after_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class ResumeReceived:
    """`check`: only if nothing is found that speaks against it."""

    request: RequestId
    node: NodeName
    user: str
    check: bool = True


@dataclass(frozen=True, slots=True)
class RemoveReceived:
    """Forget a node that is gone."""

    request: RequestId
    node: NodeName
    user: str


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """An agent opened a connection, from the address `peer`; the shell numbered it `session`."""

    session: SessionId
    hello: Hello
    peer: str


@dataclass(frozen=True, slots=True)
class ReportReceived:
    session: SessionId
    report: TaskReport | Heartbeat | StacksReport


@dataclass(frozen=True, slots=True)
class SessionEnded:
    session: SessionId


@dataclass(frozen=True, slots=True)
class SpaceSeen:
    """Somebody looked at the journal's disk: a sentence where it is full, "" where it is not."""

    problem: str


@dataclass(frozen=True, slots=True)
class JobsArchived:
    """Jobs that have ended are in the archive now, on disk."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class NoticeTried:
    """A job's webhook was told, or could not be (`problem`); `over`: it will not be tried again."""

    job: JobId
    number: int
    hook: int
    problem: str = ""
    over: bool = True


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


Stimulus = (
    CoordinatorStarted
    | SubmitReceived
    | CancelReceived
    | ChangeReceived
    | SignalReceived
    | StacksReceived
    | DrainReceived
    | ResumeReceived
    | RemoveReceived
    | HelloReceived
    | ReportReceived
    | SessionEnded
    | SpaceSeen
    | JobsArchived
    | NoticeTried
    | TimerFired
)

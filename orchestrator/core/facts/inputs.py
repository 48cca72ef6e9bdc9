"""What may happen to the coordinator: the inputs of `decide`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from muster.protocol.control_channel import Heartbeat, Hello, StacksReport, TaskReport
from muster.protocol.ids import JobId, NodeName, SessionId
from muster.spec.model import JobSpec
from orchestrator.core.facts.effects import RequestId, Timer


class CoordinatorStarted(msgspec.Struct, frozen=True):
    """The journal has been replayed; this process is its `epoch`-th owner.

    `cluster` is the name it gives to a journal that has none yet, `networks` what its
    configuration says. `first_job`: no new job has a lesser number.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0


class SubmitReceived(msgspec.Struct, frozen=True):
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


class CancelReceived(msgspec.Struct, frozen=True):
    request: RequestId
    job: JobId
    user: str
    reason: str = ""
    grace_s: float | None = None
    force: bool = False


class ChangeReceived(msgspec.Struct, frozen=True):
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


class SignalReceived(msgspec.Struct, frozen=True):
    """`signal` is a canonical name; to one node only, or one rank, where that is given."""

    request: RequestId
    job: JobId
    user: str
    signal: str
    node: str | None = None
    rank: int | None = None


class StacksReceived(msgspec.Struct, frozen=True):
    """Somebody wants to see where the ranks of a job stand."""

    request: RequestId
    job: JobId


class DrainReceived(msgspec.Struct, frozen=True):
    """`deadline_s` and `after_checkpoint` as in NodeDrained."""

    request: RequestId
    node: NodeName
    user: str
    reason: str
    deadline_s: float | None = None
    after_checkpoint: bool = False


class ResumeReceived(msgspec.Struct, frozen=True):
    """`check`: only if nothing is found that speaks against it."""

    request: RequestId
    node: NodeName
    user: str
    check: bool = True


class RemoveReceived(msgspec.Struct, frozen=True):
    """Forget a node that is gone."""

    request: RequestId
    node: NodeName
    user: str


class HelloReceived(msgspec.Struct, frozen=True):
    """An agent opened a connection, from the address `peer`; the shell numbered it `session`.
    `local`: it runs on the coordinator's own machine."""

    session: SessionId
    hello: Hello
    peer: str
    local: bool = False


class ReportReceived(msgspec.Struct, frozen=True):
    session: SessionId
    report: TaskReport | Heartbeat | StacksReport


class SessionEnded(msgspec.Struct, frozen=True):
    session: SessionId


class DiskSpaceChecked(msgspec.Struct, frozen=True):
    """Somebody looked at the journal's disk: a sentence where it is full, "" where it is not."""

    problem: str


class JobsArchived(msgspec.Struct, frozen=True):
    """Jobs that have ended are in the archive now, on disk."""

    jobs: tuple[JobId, ...]


class WebhookAttempted(msgspec.Struct, frozen=True):
    """A job's webhook was told, or could not be (`problem`); `over`: it will not be tried again."""

    job: JobId
    number: int
    hook: int
    problem: str = ""
    over: bool = True


class TimerFired(msgspec.Struct, frozen=True):
    timer: Timer


Input = (
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
    | DiskSpaceChecked
    | JobsArchived
    | WebhookAttempted
    | TimerFired
)

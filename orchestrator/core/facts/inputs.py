"""Inputs of `decide`: everything that may happen to the coordinator."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from muster.protocol.ids import JobId, NodeName, SessionId
from muster.protocol.link.control_channel import Heartbeat, Hello, StacksReport, TaskReport
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from muster.spec.model import JobSpec
from orchestrator.core.facts.effects import RequestId, Timer
from orchestrator.core.model.limits import CentralSettings
from orchestrator.core.model.people import NodeKey, People
from orchestrator.core.model.plan import PoolPolicy


class CoordinatorStarted(msgspec.Struct, frozen=True):
    """The journal has been replayed; this process is its `epoch`-th owner.

    `cluster` becomes the name of a journal that has none yet, and `secret` its secret. `networks`
    and `pools` come from the configuration, and `people` from the tokens file of a cluster that has
    imported none yet. No new job gets a number below `first_job`.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0
    pools: dict[str, PoolPolicy] = msgspec.field(default_factory=dict)
    secret: str = ""
    people: People | None = None


class SubmitReceived(msgspec.Struct, frozen=True):
    """A validated job. `digest` identifies the body that came with the idempotency key `key`.

    `searched`: how many jobs had been forgotten when the archive was searched for the key.
    `size`: bytes that the job takes in the journal.
    """

    request: RequestId
    spec: JobSpec
    user: str
    key: str = ""
    digest: str = ""
    rerun_of: JobId | None = None
    searched: int | None = None
    size: int = 0


class CancelReceived(msgspec.Struct, frozen=True):
    request: RequestId
    job: JobId
    user: str
    reason: str = ""
    grace_s: float | None = None
    force: bool = False


class ChangeReceived(msgspec.Struct, frozen=True):
    """Fields that are UNSET stay as they are. With `revisions`, the job must be at one of them."""

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
    """`signal` is a canonical name. `node` and `rank` restrict the signal if given."""

    request: RequestId
    job: JobId
    user: str
    signal: str
    node: str | None = None
    rank: int | None = None


class StacksReceived(msgspec.Struct, frozen=True):
    """A user requests the stacks of a job's ranks."""

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
    """`check`: decline if the node has known problems."""

    request: RequestId
    node: NodeName
    user: str
    check: bool = True


class RemoveReceived(msgspec.Struct, frozen=True):
    """Forget a node that is gone."""

    request: RequestId
    node: NodeName
    user: str


class LostReceived(msgspec.Struct, frozen=True):
    """An operator declares that nothing runs any more on a node that is not connected."""

    request: RequestId
    node: NodeName
    user: str


class UserReceived(msgspec.Struct, frozen=True):
    """An admin (`by`) adds a user."""

    request: RequestId
    user: str
    role: Role
    teams: tuple[str, ...]
    by: str


class UserChangeReceived(msgspec.Struct, frozen=True):
    """An admin changes, enables or disables a user. What is UNSET stays as it is."""

    request: RequestId
    user: str
    by: str
    role: Role | UnsetType = UNSET
    teams: tuple[str, ...] | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


class TokenReceived(msgspec.Struct, frozen=True):
    """An admin creates a token. The shell has drawn its id and its secret."""

    request: RequestId
    token: str
    class_: TokenClass
    sha256: str
    user: str
    label: str
    role: Role | None
    expires: float | None
    by: str


class RevokeReceived(msgspec.Struct, frozen=True):
    """A user revokes a token."""

    request: RequestId
    token: str
    by: str


class JoinSecretReceived(msgspec.Struct, frozen=True):
    """An admin creates a join secret. The shell has drawn its id and its secret."""

    request: RequestId
    secret: str
    sha256: str
    uses: int
    expires: float
    names: str
    pool: str
    approve: bool
    label: str
    by: str


class JoinSecretRevokeReceived(msgspec.Struct, frozen=True):
    """An admin revokes a join secret."""

    request: RequestId
    secret: str
    by: str


class JoinReceived(msgspec.Struct, frozen=True):
    """A node at `peer` shows a join secret (its id, and the digest of the rest). `key` is the
    certificate that the shell has signed for it. `local` as in HelloReceived. `approve`: the
    settings make all new nodes wait, whatever the secret says.
    """

    request: RequestId
    secret: str
    sha256: str
    node: NodeName
    key: NodeKey
    peer: str
    local: bool = False
    approve: bool = False


class AcceptReceived(msgspec.Struct, frozen=True):
    """An operator accepts, or rejects, the machine that waits for a name."""

    request: RequestId
    node: NodeName
    by: str
    reject: bool = False


class RevokeNodeReceived(msgspec.Struct, frozen=True):
    """An operator revokes the certificates of a node."""

    request: RequestId
    node: NodeName
    by: str


class RenewReceived(msgspec.Struct, frozen=True):
    """A node that shows the certificate `fingerprint` asks for its next one, `key`."""

    request: RequestId
    node: NodeName
    fingerprint: str
    key: NodeKey


class TokenSeen(msgspec.Struct, frozen=True):
    """A token was used."""

    token: str


class HelloReceived(msgspec.Struct, frozen=True):
    """An agent opened a connection from the address `peer`. The shell numbered it `session`.

    `local`: the agent runs on the coordinator's own machine. `certificate` is the fingerprint of
    the certificate that the agent showed; "" if it showed a token.
    """

    session: SessionId
    hello: Hello
    peer: str
    local: bool = False
    certificate: str = ""


class ReportReceived(msgspec.Struct, frozen=True):
    session: SessionId
    report: TaskReport | Heartbeat | StacksReport


class SettingsRead(msgspec.Struct, frozen=True):
    """The settings of agents were read again. `before` are those that were in force."""

    before: CentralSettings


class SessionEnded(msgspec.Struct, frozen=True):
    session: SessionId


class DiskSpaceChecked(msgspec.Struct, frozen=True):
    """The journal's disk was checked. `problem` is a sentence if the disk is full, else ""."""

    problem: str


class JobsArchived(msgspec.Struct, frozen=True):
    """Ended jobs that are on disk in the archive now."""

    jobs: tuple[JobId, ...]


class WebhookAttempted(msgspec.Struct, frozen=True):
    """A webhook was delivered, or failed (`problem`). `over`: there is no further attempt."""

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
    | LostReceived
    | UserReceived
    | UserChangeReceived
    | TokenReceived
    | RevokeReceived
    | TokenSeen
    | JoinSecretReceived
    | JoinSecretRevokeReceived
    | JoinReceived
    | AcceptReceived
    | RevokeNodeReceived
    | RenewReceived
    | HelloReceived
    | ReportReceived
    | SettingsRead
    | SessionEnded
    | DiskSpaceChecked
    | JobsArchived
    | WebhookAttempted
    | TimerFired
)

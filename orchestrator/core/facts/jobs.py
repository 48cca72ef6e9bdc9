"""What has happened: the only things that change the state, and what the journal keeps.

Facts are history. They say what was decided, never why it was right, so that policy may change
while old
journals still replay. A field may be added with a default; a tag is never renamed or reused.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from muster.fabric.traffic_verdict import Proof
from muster.protocol.control_channel import Inventory, Prepared, RankReport, Refusal
from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.interfaces import Endpoint
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.traffic import FabricReport
from muster.spec.model import JobSpec
from muster.spec.units import duration_text
from orchestrator.core.facts import hangs as of_hang
from orchestrator.core.facts import idle as of_idle
from orchestrator.core.facts import links as of_link
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.service import HardwareNoted, OfService
from orchestrator.core.model.fabric_plan import FabricPlan

SCHEMA: Final = 1


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class EpochStarted(_Fact, frozen=True):
    """A coordinator process took over the journal, and has none of the connections before it.

    `cluster` is the name that the journal's first owner gave it, `networks` those that its
    configuration wants gangs to use. `first_job`: no new job has a lesser number, as a journal that
    was restored may not know them all.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0


class NodeRegistered(_Fact, frozen=True):
    """A node is known, or what is known of it has changed."""

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory


class JobSubmitted(_Fact, frozen=True):
    """`key` is the client's idempotency key, `digest` the SHA-256 of what was submitted under
    it. `rerun_of` is the job that this one is another run of."""

    job: JobId
    spec: JobSpec
    user: str
    key: str = ""
    digest: str = ""
    rerun_of: JobId | None = None


class JobHeld(_Fact, frozen=True):
    """A job that waits is not to be placed until it is released."""

    job: JobId
    user: str
    reason: str = ""


class JobReleased(_Fact, frozen=True):
    """It waits in its queue again, where it was."""

    job: JobId
    user: str


class JobChanged(_Fact, frozen=True):
    """What a user has changed of a job that has not ended; the rest is as it was submitted."""

    job: JobId
    user: str
    priority: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    name: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        """What was changed, nearly in the spelling of a job file."""
        told = []
        if self.priority is not UNSET:
            told.append(f"priority {self.priority}")
        if self.time_limit_s is not UNSET:
            limit_s = self.time_limit_s
            told.append(
                "no time limit" if limit_s is None else f"time limit {duration_text(limit_s)}"
            )
        if self.name is not UNSET:
            told.append(f"name {self.name}")
        return ", ".join(told)


class CancelRequested(_Fact, frozen=True):
    job: JobId
    user: str
    reason: str = ""
    grace_s: float | None = None
    force: bool = False


class AttemptPlaced(_Fact, frozen=True):
    """The gang: `nodes` in node-rank order, the first is the launcher. They are taken from here
    on. `why` says in words why these. `gpus` are, for each of them, the UUIDs of those that the
    gang has there, () for the node as a whole; without any, it has every node as a whole."""

    job: JobId
    attempt: int
    nodes: tuple[NodeName, ...]
    why: str = ""
    gpus: tuple[tuple[str, ...], ...] = ()


class TaskPrepared(_Fact, frozen=True):
    job: JobId
    attempt: int
    rank: int
    prepared: Prepared


class TaskRefused(_Fact, frozen=True):
    job: JobId
    attempt: int
    rank: int
    refusal: Refusal


class AttemptArranged(_Fact, frozen=True):
    """Where the gang meets. The port is leased until the attempt is closed.

    `endpoints` are in node-rank order, and `network` says which network they are of, and why.
    `fabric` is None where there is nothing to plan.
    """

    job: JobId
    attempt: int
    master_addr: str
    master_port: int
    endpoints: tuple[Endpoint, ...] = ()
    network: str = ""
    fabric: FabricPlan | None = None


class TaskArranged(_Fact, frozen=True):
    """`warnings` are sentences for a person."""

    job: JobId
    attempt: int
    rank: int
    warnings: tuple[str, ...] = ()


class AttemptStarted(_Fact, frozen=True):
    """The gates may open: from here on a process of the job may run."""

    job: JobId
    attempt: int


class TaskListening(_Fact, frozen=True):
    """The launcher's rendezvous port is open."""

    job: JobId
    attempt: int
    rank: int


class TaskStarted(_Fact, frozen=True):
    job: JobId
    attempt: int
    rank: int


class AttemptWarned(_Fact, frozen=True):
    """The ranks are to get the signal that warns of the time limit, once."""

    job: JobId
    attempt: int


class SignalRequested(_Fact, frozen=True):
    """The ranks of the attempt are to get a signal, once; on `node` only, and `rank` only, where
    those are given."""

    job: JobId
    attempt: int
    user: str
    signal: str
    node: NodeName | None = None
    rank: int | None = None

    @property
    def text(self) -> str:
        """As in `SIGUSR1 sent to rank 3`."""
        whom = "all ranks" if self.rank is None else f"rank {self.rank}"
        return f"{self.signal} sent to {whom}" + (f" on {self.node}" if self.node else "")


class StopRequested(_Fact, frozen=True):
    """The attempt ends, of this cause and no other."""

    job: JobId
    attempt: int
    cause: Cause


class StopForced(_Fact, frozen=True):
    """The grace is over: a stopping attempt is to be killed."""

    job: JobId
    attempt: int


class GraceShortened(_Fact, frozen=True):
    """A stop that has begun: what is left after `grace_s` from now is killed."""

    job: JobId
    attempt: int
    user: str
    grace_s: float


class TaskExited(_Fact, frozen=True):
    """`traffic` is what was known of it at the end."""

    job: JobId
    attempt: int
    rank: int
    exit: ExitStatus
    ranks: tuple[RankReport, ...] = ()
    stopped_by: str = ""
    traffic: FabricReport | None = None


class TaskCleaned(_Fact, frozen=True):
    """Nothing of the task is left on its node. `no_output`: nor has it written a byte."""

    job: JobId
    attempt: int
    rank: int
    no_output: bool = False


class TaskLost(_Fact, frozen=True):
    """The node will not say any more what became of the task, and can no longer be running it."""

    job: JobId
    attempt: int
    rank: int
    reason: str


class TaskUnreachable(_Fact, frozen=True):
    """Its node cannot be reached; the task is presumed to go on."""

    job: JobId
    attempt: int
    rank: int


class TaskReachable(_Fact, frozen=True):
    """Its node is connected again, and has it still."""

    job: JobId
    attempt: int
    rank: int


class TaskJoined(_Fact, frozen=True):
    """A node becomes part of a running elastic gang: its task has the next free rank, and is
    reached at `endpoint` (None: where its agent says). `gpus` as in AttemptPlaced."""

    job: JobId
    attempt: int
    rank: int
    node: NodeName
    endpoint: Endpoint | None = None
    gpus: tuple[str, ...] = ()


class TaskLeft(_Fact, frozen=True):
    """An elastic gang goes on without this task, which is to end if it has not, at once with
    `force`; its node is free when it has."""

    job: JobId
    attempt: int
    rank: int
    reason: str
    force: bool = False


class TaskCheckpointed(_Fact, frozen=True):
    """A node has seen that the job has written a checkpoint, `ago_s` before: for the `fresh`-th
    time since its task began, and `name` is the newest file."""

    job: JobId
    attempt: int
    rank: int
    name: str
    fresh: int = 1
    ago_s: float = 0.0


class TrafficJudged(_Fact, frozen=True):
    """What carries the traffic of the attempt is known, or known better."""

    job: JobId
    attempt: int
    proof: Proof


class AttemptClosed(_Fact, frozen=True):
    """Every task is cleaned or lost; the nodes and the port are free."""

    job: JobId
    attempt: int


class RetryScheduled(_Fact, frozen=True):
    """Another attempt will follow after `delay_s`, not on `avoid` where others will do.

    `budget` is the one that pays: user, infra, or free where it costs the job nothing.
    """

    job: JobId
    budget: str
    delay_s: float
    avoid: tuple[NodeName, ...] = ()


class JobRequeued(_Fact, frozen=True):
    job: JobId


class JobEnded(_Fact, frozen=True):
    job: JobId
    cause: Cause


class RunTimed(_Fact, frozen=True):
    """The attempt runs since `since`, in this process's monotonic seconds, as its nodes say."""

    job: JobId
    attempt: int
    since: float


class TrafficMeasured(_Fact, frozen=True):
    """A node's newest figures of its part of a gang's traffic."""

    task: TaskId
    report: FabricReport


class SpaceChanged(_Fact, frozen=True):
    """The journal's disk has become full (a sentence), or has room again ("")."""

    problem: str


class JobForgotten(_Fact, frozen=True):
    """The job has ended and is in the archive: the state has it no longer. No fact of a job
    follows its JobEnded but those of its notices and this one."""

    job: JobId


NodeConnected = of_link.NodeConnected
NameClaimed = of_link.DuplicateNameSeen
NodeSynced = of_link.NodeSynced
FailureSuspected = of_link.FailureSuspected
NodeHeard = of_link.NodeHeard
PortsSeen = of_link.PortsReported
PeersSeen = of_link.PeersReported
DisksSeen = of_link.DisksReported
SurvivorsSeen = of_link.SurvivorsReported
NodeDisconnected = of_link.NodeDisconnected
LeaseExtended = of_link.LeaseExtended
NodeLeaseExpired = of_link.NodeLeaseExpired
JudgementPut = of_link.LivenessPaused
BrakeSet = of_link.MassOutageDeclared
BrakeReleased = of_link.MassOutageCleared
OfLink = of_link.OfLink
OfJudgement = of_link.OfJudgement

HangJudged = of_hang.HangJudged
HangOver = of_hang.HangCleared
Looking = of_hang.Looking
IdleJudged = of_idle.IdleJudged
IdleOver = of_idle.IdleOver

Ephemeral = (
    OfLink
    | OfJudgement
    | Looking
    | of_idle.IdleWatching
    | RunTimed
    | SpaceChanged
    | JobForgotten
    | TrafficMeasured
    | nf.WebhookFailed
)

Durable = (
    EpochStarted
    | NodeRegistered
    | OfService
    | nf.WebhookQueued
    | nf.WebhookSettled
    | JobSubmitted
    | JobHeld
    | JobReleased
    | JobChanged
    | CancelRequested
    | AttemptPlaced
    | TaskPrepared
    | TaskRefused
    | AttemptArranged
    | TaskArranged
    | AttemptStarted
    | TaskListening
    | TaskStarted
    | AttemptWarned
    | SignalRequested
    | StopRequested
    | StopForced
    | GraceShortened
    | TaskExited
    | TaskCleaned
    | TaskLost
    | TaskUnreachable
    | TaskReachable
    | TaskJoined
    | TaskLeft
    | TrafficJudged
    | TaskCheckpointed
    | HangJudged
    | HangOver
    | IdleJudged
    | IdleOver
    | HardwareNoted
    | AttemptClosed
    | RetryScheduled
    | JobRequeued
    | JobEnded
)

Fact = Durable | Ephemeral

"""Facts: the only things that change the state, and the content of the journal.

Facts are history. They record what was decided, never why it was right, so that policy may change
while old journals still replay. A field may be added with a default; a tag is never renamed or
reused.
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
    """A coordinator process took over the journal, without the connections of the previous one.

    `cluster` is the name that the journal's first owner gave it. `networks` are those that the
    configuration wants gangs to use. No new job gets a number below `first_job`, as a restored
    journal may lack some jobs.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0


class NodeRegistered(_Fact, frozen=True):
    """A node has joined, or its description has changed.

    Rate-limited for each node. The journal keeps the first and the newest one of a process.
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory


class JobSubmitted(_Fact, frozen=True):
    """`key` is the client's idempotency key, `digest` the SHA-256 of the body submitted with it.

    `rerun_of` is the job that this one runs again.
    """

    job: JobId
    spec: JobSpec
    user: str
    key: str = ""
    digest: str = ""
    rerun_of: JobId | None = None


class JobHeld(_Fact, frozen=True):
    """A waiting job must not be placed until a user releases it."""

    job: JobId
    user: str
    reason: str = ""


class JobReleased(_Fact, frozen=True):
    """The job waits in its queue again, at its former position."""

    job: JobId
    user: str


class JobChanged(_Fact, frozen=True):
    """The fields that a user changed of a job that has not ended. The others keep their values."""

    job: JobId
    user: str
    priority: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    name: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        """The changes, nearly in the spelling of a job file."""
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
    """The gang: `nodes` in node-rank order, the launcher first. They are taken from here on.

    `why` explains the choice in words. `gpus` has, for each node, the UUIDs of the gang's GPUs, or
    () for the whole node. If `gpus` is empty, the gang has every node as a whole.
    """

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
    """The rendezvous of the gang. The port is leased until the attempt is closed.

    `endpoints` are in node-rank order. `network` names their network and the reason for the choice.
    `fabric` is None if there is nothing to plan. `machine_id` is the machine of the port; None in
    journals of release 0.1, where the launcher's last registration says it.
    """

    job: JobId
    attempt: int
    master_addr: str
    master_port: int
    endpoints: tuple[Endpoint, ...] = ()
    network: str = ""
    fabric: FabricPlan | None = None
    machine_id: str | None = None


class TaskArranged(_Fact, frozen=True):
    """`warnings` are sentences for users."""

    job: JobId
    attempt: int
    rank: int
    warnings: tuple[str, ...] = ()


class AttemptStarted(_Fact, frozen=True):
    """The gates may open: from here on, processes of the job may run."""

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
    """The ranks get the signal that warns of the time limit, once."""

    job: JobId
    attempt: int


class SignalRequested(_Fact, frozen=True):
    """The ranks of the attempt get a signal, once. `node` and `rank` restrict it if given."""

    job: JobId
    attempt: int
    user: str
    signal: str
    node: NodeName | None = None
    rank: int | None = None

    @property
    def text(self) -> str:
        """The request in words, such as `SIGUSR1 sent to rank 3`."""
        whom = "all ranks" if self.rank is None else f"rank {self.rank}"
        return f"{self.signal} sent to {whom}" + (f" on {self.node}" if self.node else "")


class StopRequested(_Fact, frozen=True):
    """The attempt ends, for this cause and no other."""

    job: JobId
    attempt: int
    cause: Cause


class StopForced(_Fact, frozen=True):
    """The grace period is over: kill the stopping attempt."""

    job: JobId
    attempt: int


class GraceShortened(_Fact, frozen=True):
    """A user shortened the grace period of a stop: it ends `grace_s` from now."""

    job: JobId
    attempt: int
    user: str
    grace_s: float


class TaskExited(_Fact, frozen=True):
    """`traffic` is the last traffic report before the exit."""

    job: JobId
    attempt: int
    rank: int
    exit: ExitStatus
    ranks: tuple[RankReport, ...] = ()
    stopped_by: str = ""
    traffic: FabricReport | None = None


class TaskCleaned(_Fact, frozen=True):
    """Nothing of the task is left on its node. `no_output`: the task never wrote a byte."""

    job: JobId
    attempt: int
    rank: int
    no_output: bool = False


class TaskLost(_Fact, frozen=True):
    """The node can no longer be running the task, and will not report how it ended."""

    job: JobId
    attempt: int
    rank: int
    reason: str


class TaskUnreachable(_Fact, frozen=True):
    """The task's node cannot be reached; the task is presumed to run on."""

    job: JobId
    attempt: int
    rank: int


class TaskReachable(_Fact, frozen=True):
    """The task's node is connected again and still has the task."""

    job: JobId
    attempt: int
    rank: int


class TaskJoined(_Fact, frozen=True):
    """A node joins a running elastic gang. Its task gets the next free rank.

    Peers reach the task at `endpoint` (None: at the address that its agent reports). `gpus` as in
    AttemptPlaced.
    """

    job: JobId
    attempt: int
    rank: int
    node: NodeName
    endpoint: Endpoint | None = None
    gpus: tuple[str, ...] = ()


class TaskLeft(_Fact, frozen=True):
    """An elastic gang continues without this task.

    The task is stopped if it still runs, at once with `force`. Its node is free after that.
    """

    job: JobId
    attempt: int
    rank: int
    reason: str
    force: bool = False


class TaskCheckpointed(_Fact, frozen=True):
    """A node saw that the job wrote a checkpoint `ago_s` seconds ago.

    It is the `fresh`-th checkpoint since the task began. `name` is the newest file.
    """

    job: JobId
    attempt: int
    rank: int
    name: str
    fresh: int = 1
    ago_s: float = 0.0


class TrafficJudged(_Fact, frozen=True):
    """New or better evidence of what carries the traffic of the attempt."""

    job: JobId
    attempt: int
    proof: Proof


class AttemptClosed(_Fact, frozen=True):
    """Every task is cleaned or lost; the nodes and the port are free."""

    job: JobId
    attempt: int


class RetryScheduled(_Fact, frozen=True):
    """Another attempt follows after `delay_s`. It avoids the nodes in `avoid` if others suffice.

    `budget` is the retry budget to charge: user, infra, or free if the retry costs nothing.
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
    """The attempt has run since `since` (monotonic seconds of this process), as its nodes
    report."""

    job: JobId
    attempt: int
    since: float


class TrafficMeasured(_Fact, frozen=True):
    """The newest figures of a node on its part of a gang's traffic."""

    task: TaskId
    report: FabricReport


class SpaceChanged(_Fact, frozen=True):
    """The journal's disk is full (a sentence), or has room again ("")."""

    problem: str


class JobForgotten(_Fact, frozen=True):
    """The ended job is in the archive and leaves the state.

    After JobEnded, the only facts of a job are those about its webhooks and this one.
    """

    job: JobId


NodeConnected = of_link.NodeConnected
DuplicateNameSeen = of_link.DuplicateNameSeen
NodeDescribed = of_link.NodeDescribed
NodeSynced = of_link.NodeSynced
FailureSuspected = of_link.FailureSuspected
NodeHeard = of_link.NodeHeard
PortsReported = of_link.PortsReported
PeersReported = of_link.PeersReported
DisksReported = of_link.DisksReported
SurvivorsReported = of_link.SurvivorsReported
NodeDisconnected = of_link.NodeDisconnected
LeaseExtended = of_link.LeaseExtended
NodeLeaseExpired = of_link.NodeLeaseExpired
LivenessPaused = of_link.LivenessPaused
MassOutageDeclared = of_link.MassOutageDeclared
MassOutageCleared = of_link.MassOutageCleared
OfLink = of_link.OfLink
OfJudgement = of_link.OfJudgement

HangJudged = of_hang.HangJudged
HangCleared = of_hang.HangCleared
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
    | HangCleared
    | IdleJudged
    | IdleOver
    | HardwareNoted
    | AttemptClosed
    | RetryScheduled
    | JobRequeued
    | JobEnded
)

Fact = Durable | Ephemeral

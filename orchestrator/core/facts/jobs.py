"""Facts: the only things that change the state, and the content of the journal.

Facts are history. They record what was decided, never why it was right, so that policy may change
while old journals still replay. A field may be added with a default; a tag is never renamed or
reused.
"""

from __future__ import annotations

from typing import Final, get_args

from msgspec import UNSET, UnsetType

from muster.fabric.traffic_verdict import Proof
from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Prepared, RankReport, Refusal
from muster.protocol.observations.interfaces import Endpoint, host_port
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.observations.traffic import FabricReport
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.refusal_codes import headline
from muster.protocol.text import PROLOG
from muster.spec.model import JobSpec
from muster.spec.serialize import nodes_text
from muster.spec.units import duration_text
from orchestrator.core.facts import cluster as of_cluster
from orchestrator.core.facts import enrolment as of_enrolment
from orchestrator.core.facts import hangs as of_hang
from orchestrator.core.facts import idle as of_idle
from orchestrator.core.facts import links as of_link
from orchestrator.core.facts import queue as of_queue
from orchestrator.core.facts import restored as of_restore
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.base import (
    EPHEMERAL,
    LAZY,
    PATIENT,
    SYNC,
    AttemptFact,
    Inert,
    JobFact,
    TaskFact,
)
from orchestrator.core.facts.members import OfMembers
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.facts.service import HardwareNoted, OfService
from orchestrator.core.model.fabric_plan import FabricPlan
from orchestrator.core.model.proof import TaskProof

SCHEMA: Final = 1


class JobSubmitted(JobFact, Inert, durability=SYNC, reschedules=True, milestone=True):
    """`key` is the client's idempotency key, `digest` the SHA-256 of the body submitted with it.

    `rerun_of` is the job that this one runs again.
    """

    spec: JobSpec
    user: str
    key: str = ""
    digest: str = ""
    rerun_of: JobId | None = None

    def describe(self) -> str:
        again = "" if self.rerun_of is None else f", job {self.rerun_of} again"
        nodes = nodes_text(self.spec)
        count = "1 node" if nodes == 1 else f"{nodes} nodes"
        return f"submitted by {self.user}: {self.spec.name}, {count}{again}"


class JobHeld(JobFact, Inert, durability=SYNC, reschedules=True, milestone=True):
    """A waiting job must not be placed until a user releases it."""

    user: str
    reason: str = ""

    def describe(self) -> str:
        return f"held by {self.user}" + (f": {self.reason}" if self.reason else "")


class JobReleased(JobFact, Inert, durability=SYNC, reschedules=True, milestone=True):
    """The job waits in its queue again, at its former position."""

    user: str

    def describe(self) -> str:
        return f"released by {self.user}"


class JobChanged(JobFact, durability=SYNC, reschedules=True, milestone=True):
    """The fields that a user changed of a job that has not ended. The others keep their values."""

    user: str
    priority: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    name: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        """The changes, nearly in the spelling of a job file."""
        changes = []
        if self.priority is not UNSET:
            changes.append(f"priority {self.priority}")
        if self.time_limit_s is not UNSET:
            limit_s = self.time_limit_s
            changes.append(
                "no time limit" if limit_s is None else f"time limit {duration_text(limit_s)}"
            )
        if self.name is not UNSET:
            changes.append(f"name {self.name}")
        return ", ".join(changes)

    def describe(self) -> str:
        return f"changed by {self.user}: {self.text}"


class CancelRequested(JobFact, Inert, durability=SYNC, reschedules=False, milestone=True):
    user: str
    reason: str = ""
    grace_s: float | None = None
    force: bool = False

    def describe(self) -> str:
        how = "cancel with force" if self.force else "cancel"
        return f"{how} requested by {self.user}" + (f": {self.reason}" if self.reason else "")


class AttemptPlaced(AttemptFact, durability=SYNC, reschedules=True, milestone=True):
    """The gang: `nodes` in node-rank order, the launcher first. They are taken from here on.

    `why` explains the choice in words, and `ahead` why a start before other jobs delays none.
    `gpus` has, for each node, the UUIDs of the gang's GPUs, or () for the whole node. If it is
    empty, the gang has every node as a whole. `lease_s`: seconds; None if its tasks have no lease.
    """

    nodes: tuple[NodeName, ...]
    why: str = ""
    gpus: tuple[tuple[str, ...], ...] = ()
    lease_s: float | None = None
    ahead: str = ""

    def describe(self) -> str:
        return f"placed on {', '.join(self.nodes)}"


class TaskPrepared(TaskFact, durability=LAZY, reschedules=False):
    prepared: Prepared

    def describe(self) -> str:
        return "prepared"


class TaskRefused(TaskFact, durability=SYNC, reschedules=False):
    refusal: Refusal

    def describe(self) -> str:
        return f"refused: {headline(self.refusal.text)}"


class AttemptArranged(AttemptFact, durability=SYNC, reschedules=False, milestone=False):
    """The rendezvous of the gang. The port is leased until the attempt is closed.

    `endpoints` are in node-rank order. `network` names their network and the reason for the choice.
    `fabric` is None if there is nothing to plan. With `vouch_key`, the agents of the gang vouch for
    each other; "" if they do not. `machine_id` is the machine of the port; None in
    journals of release 0.1, where the launcher's last registration says it.
    """

    master_addr: str
    master_port: int
    endpoints: tuple[Endpoint, ...] = ()
    network: str = ""
    fabric: FabricPlan | None = None
    machine_id: str | None = None
    vouch_key: str = ""

    def describe(self) -> str:
        if not self.master_addr:
            return "arranged"
        over = f", network {self.network}" if self.network else ""
        return f"rendezvous at {host_port(self.master_addr, self.master_port)}{over}"


class TaskArranged(TaskFact, durability=LAZY, reschedules=False):
    """`warnings` are sentences for users."""

    warnings: tuple[str, ...] = ()

    def describe(self) -> str:
        return "; ".join(("arranged", *(it for it in self.warnings if it.startswith(PROLOG))))


class AttemptStarted(AttemptFact, durability=SYNC, reschedules=False, milestone=True):
    """The gates may open: from here on, processes of the job may run."""

    def describe(self) -> str:
        return "all nodes are ready, starting"


class TaskListening(TaskFact, durability=LAZY, reschedules=False):
    """The launcher's rendezvous port is open."""

    def describe(self) -> str:
        return "the rendezvous port listens"


class TaskStarted(TaskFact, durability=LAZY, reschedules=False):
    """The gate of the task has opened: its launcher runs."""

    def describe(self) -> str:
        return "started"


class RanksStarted(TaskFact, Inert, durability=LAZY, reschedules=False):
    """torchrun started its first rank on the node, or the first one that was not forked."""

    start: RanksStart

    def describe(self) -> str:
        return f"ranks start by {self.start.method}{self.start.why and ': '}{self.start.why}"


class AttemptWarned(AttemptFact, Inert, durability=LAZY, reschedules=False, milestone=False):
    """A node has warned its ranks of the time limit, `warned_s` after the start.

    None in records of when the coordinator sent that signal, as it does those of users.
    """

    warned_s: float | None = None

    def describe(self) -> str:
        return "the ranks are warned that the time limit is near"


class SignalRequested(AttemptFact, durability=SYNC, reschedules=False, milestone=True):
    """The ranks of the attempt get a signal, once. `node` and `rank` restrict it if given."""

    user: str
    signal: str
    node: NodeName | None = None
    rank: int | None = None

    @property
    def text(self) -> str:
        """The request in words, such as `SIGUSR1 sent to rank 3`."""
        whom = "all ranks" if self.rank is None else f"rank {self.rank}"
        return f"{self.signal} sent to {whom}" + (f" on {self.node}" if self.node else "")

    def describe(self) -> str:
        return f"{self.text} by {self.user}"


class StopRequested(AttemptFact, durability=SYNC, reschedules=False, milestone=True):
    """The attempt ends, for this cause and no other."""

    cause: Cause

    def describe(self) -> str:
        return f"stopping: {self.cause.text}"


class StopForced(AttemptFact, durability=SYNC, reschedules=False, milestone=False):
    """The grace period is over: kill the stopping attempt."""

    def describe(self) -> str:
        return "grace period is over, killing"


class GraceShortened(AttemptFact, durability=SYNC, reschedules=False, milestone=False):
    """A user shortened the grace period of a stop: it ends `grace_s` from now."""

    user: str
    grace_s: float

    def describe(self) -> str:
        return f"grace period cut to {duration_text(self.grace_s)} by {self.user}"


class TaskExited(TaskFact, durability=PATIENT, reschedules=False):
    """`traffic` is the last report before the exit, `ran_s` the run by the node's clock, or 0."""

    exit: ExitStatus
    ranks: tuple[RankReport, ...] = ()
    stopped_by: str = ""
    traffic: FabricReport | None = None
    ran_s: float = 0.0

    def describe(self) -> str:
        if self.exit.signal is not None:
            return f"ended by signal {self.exit.signal}"
        code = self.exit.code
        return "ended, exit status unknown" if code is None else f"ended with code {code}"


class TaskCleaned(TaskFact, durability=PATIENT, reschedules=True):
    """Nothing of the task is left on its node. `no_output`: the task never wrote a byte. `epilog`
    is the entry of the report's `warnings` with the last line of the site's epilog."""

    no_output: bool = False
    epilog: str = ""

    def describe(self) -> str:
        return f"nothing is left on the node{self.epilog and '; '}{self.epilog}"


class TaskLost(TaskFact, durability=SYNC, reschedules=True):
    """The node can no longer be running the task, and will not report how it ended.

    `proof` is None in records of before proofs were recorded.
    """

    reason: str
    proof: TaskProof | None = None

    def describe(self) -> str:
        return f"lost: {self.reason}"


class TaskUnreachable(TaskFact, Inert, durability=LAZY, reschedules=False):
    """The task's node cannot be reached; the task is presumed to run on."""

    def describe(self) -> str:
        return "cannot be reached, presumed running"


class TaskReachable(TaskFact, Inert, durability=LAZY, reschedules=False):
    """The task's node is connected again and still has the task."""

    def describe(self) -> str:
        return "is back"


class TaskJoined(TaskFact, durability=SYNC, reschedules=False):
    """A node joins a running elastic gang. Its task gets the next free rank.

    Peers reach the task at `endpoint` (None: at the address that its agent reports). `gpus` as in
    AttemptPlaced. The attempt has run for `after_s` seconds.
    """

    node: NodeName
    endpoint: Endpoint | None = None
    gpus: tuple[str, ...] = ()
    after_s: float = 0.0

    def describe(self) -> str:
        return "joins the running gang"


class TaskLeft(TaskFact, durability=SYNC, reschedules=True):
    """An elastic gang continues without this task.

    The task is stopped if it still runs, at once with `force`. Its node is free after that.
    """

    reason: str
    force: bool = False

    def describe(self) -> str:
        return f"the gang continues without it: {self.reason}"


class TaskCheckpointed(TaskFact, durability=LAZY, reschedules=False):
    """A node saw that the job wrote a checkpoint `ago_s` seconds ago.

    It is the `fresh`-th checkpoint since the task began. `name` is the newest file.
    """

    name: str
    fresh: int = 1
    ago_s: float = 0.0

    def describe(self) -> str:
        return f"saw a checkpoint: {self.name}"


class TrafficJudged(AttemptFact, durability=LAZY, reschedules=False, milestone=False):
    """New or better evidence of what carries the traffic of the attempt."""

    proof: Proof

    def describe(self) -> str:
        return self.proof.text


class AttemptClosed(AttemptFact, durability=SYNC, reschedules=True, milestone=True):
    """Every task is cleaned or lost; the nodes and the port are free."""

    def describe(self) -> str:
        return "closed, its nodes are free"


class RetryScheduled(JobFact, durability=SYNC, reschedules=False, milestone=False):
    """Another attempt follows after `delay_s`. It avoids the nodes in `avoid` if others suffice.

    `budget` is the retry budget to charge: user, infra, or free if the retry costs nothing.
    """

    budget: str
    delay_s: float
    avoid: tuple[NodeName, ...] = ()

    def describe(self) -> str:
        return f"will be retried in {self.delay_s:g} s ({self.budget} budget)"


class JobRequeued(JobFact, Inert, durability=LAZY, reschedules=True, milestone=False):
    """The wait before a retry is over: the job is in its queue again."""

    def describe(self) -> str:
        return "queued again"


class JobEnded(JobFact, durability=SYNC, reschedules=True, milestone=True):
    cause: Cause

    def describe(self) -> str:
        return f"ended: {self.cause.text}"


class RunTimed(
    AttemptFact, durability=EPHEMERAL, reschedules=False, milestone=False, revises=False
):
    """The attempt has run since `since` (monotonic seconds of this process), as its nodes
    report."""

    since: float


class JobForgotten(
    JobFact, Inert, durability=EPHEMERAL, reschedules=False, milestone=False, revises=False
):
    """The ended job is in the archive and leaves the state.

    After JobEnded, the only facts of a job are those about its webhooks and this one.
    """


OfJob = (
    JobSubmitted
    | JobHeld
    | JobReleased
    | JobChanged
    | CancelRequested
    | RetryScheduled
    | JobRequeued
    | JobEnded
    | JobForgotten
)
OfAttempt = (
    AttemptPlaced
    | AttemptArranged
    | AttemptStarted
    | AttemptWarned
    | SignalRequested
    | StopRequested
    | StopForced
    | GraceShortened
    | RunTimed
    | TrafficJudged
    | HardwareNoted
    | AttemptClosed
)
OfTask = (
    TaskPrepared
    | TaskRefused
    | TaskArranged
    | TaskListening
    | TaskStarted
    | RanksStarted
    | TaskExited
    | TaskCleaned
    | TaskLost
    | TaskUnreachable
    | TaskReachable
    | TaskJoined
    | TaskLeft
    | TaskCheckpointed
    | OfMembers
)
Fact = (
    of_cluster.OfCluster
    | of_enrolment.OfCredentials
    | of_restore.OfRestore
    | OfJob
    | OfAttempt
    | OfTask
    | TaskObserved
    | of_link.OfLink
    | of_hang.OfHang
    | of_idle.OfIdle
    | nf.OfWebhooks
    | of_queue.OfQueue
    | OfService
)

DURABLE: Final = tuple(fact for fact in get_args(Fact) if fact.durability is not EPHEMERAL)
"""The facts that the journal may hold."""

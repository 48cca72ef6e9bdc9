"""The coordinator's state. Only `apply` changes it, by facts; all other code reads it.

The fields of a node below `volatile` belong to this process: they are not in the journal, and a new
epoch begins without them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from muster.fabric.traffic_verdict import Proof
from muster.protocol.ids import BadId, JobId, NodeName, SessionId, TaskId, parse_task_id, task_id
from muster.protocol.link.control_channel import (
    Inventory,
    Prepared,
    RankReport,
    Refusal,
    StacksReport,
)
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.hangs import HangVerdict, RankActivity, RankStacks
from muster.protocol.observations.hardware_events import HardwareEvent
from muster.protocol.observations.interfaces import Endpoint
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.observations.traffic import FabricReport, PortHealth
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import JobSpec
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.fabric_plan import FabricPlan
from orchestrator.core.model.history import BoundedLines
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import AdminState, Drain, Fault, LinkState, UnknownTasks
from orchestrator.core.model.people import Enrolment, People
from orchestrator.core.model.plan import DEFAULT_POLICY, PoolPolicy, QueuePlan, WaitingIndex
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.registrations import NewNodes
from orchestrator.core.model.task import OVER
from orchestrator.core.model.user_webhooks import UserWebhooks

TERMS_LEFT_OUT: Final = 1000


class Share(NamedTuple):
    """An attempt's share of a node: GPUs by UUID, and CPUs and memory as requested.

    `whole`: no other attempt gets anything of the node, whatever `gpus` is.
    """

    gpus: tuple[str, ...] = ()
    whole: bool = True
    cpus: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Node:
    name: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory
    # Attempts that hold the node or a part of it, until they are closed.
    holders: dict[tuple[JobId, int], Share] = field(default_factory=dict)
    drain: Drain | None = None  # while the node is out of service
    drains: int = 0  # number of drains so far
    faults: tuple[Fault, ...] = ()  # the newest, one per job, until a resume
    faults_gone: int = 0  # count of older, unforgiven faults
    spared: str = ""  # why a due quarantine was skipped
    hardware: tuple[tuple[float, HardwareEvent], ...] = ()  # the newest, until a resume
    hardware_heard: tuple[str, int] = ("", -1)  # boot and number of the newest event
    declared_lost: bool = False  # since its last connection or task
    # volatile
    unrecorded: bool = False  # the journal does not have its description yet
    record_due: float = 0.0  # see `registration_due`
    connect_due: float = 0.0  # see `connection_due`
    hardware_passed: tuple[str, int] | None = None  # newest event, recorded or not
    hardware_due: float = 0.0  # see `registrations`
    kills_due: float = 0.0  # of kills for lack of memory
    hardware_skipped: int = 0  # events beyond the rate
    link: LinkState = LinkState.OFFLINE
    session: SessionId | None = None
    peer: str = ""
    connected_at: float = 0.0
    heard_at: float = 0.0
    answered_at: float = 0.0  # when it was last answered; of the process start if before that
    ahead_s: float = 0.0  # of the agent's wall clock
    instance: str = ""
    made_s: float = 0.0  # when its last Hello was made, by its own clock
    lives: tuple[float, ...] = ()  # newest times of agent restarts
    claimed: tuple[str, float] | None = None  # by another agent: its address, time
    ports: tuple[PortHealth, ...] = ()  # RDMA ports that are down or flapping
    disks: tuple[DiskHealth, ...] = ()  # disks that are full or hang
    refuses_jobs: str = ""  # why it would refuse every job
    no_torch: str = ""  # why jobs that name no interpreter have no torch there
    settings: tuple[NodeSetting, ...] = ()  # of its agent
    survivors: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)  # pids, despite SIGKILL
    protocol: int = 1  # version in use with the agent

    @property
    def in_service(self) -> bool:
        """True if the node may get jobs, if it is connected and free."""
        return self.drain is None

    @property
    def admin(self) -> AdminState:
        if self.drain is None:
            return AdminState.ACTIVE
        return AdminState.DRAINING if self.holders else AdminState.DRAINED


@dataclass(slots=True)
class Task:
    id: TaskId
    job: JobId
    attempt: int
    rank: int  # node rank; 0 is the launcher
    node: NodeName
    state: TaskState = TaskState.ASSIGNED
    prepared: Prepared | None = None
    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()
    listening: bool = False
    start: RanksStart | None = None
    exit: ExitStatus | None = None
    ranks: tuple[RankReport, ...] = ()
    stopped_by: str = ""
    ran_s: float = 0.0  # of an ended task, by its node's clock; 0: unknown
    traffic: FabricReport | None = None  # volatile until the exit
    silent: tuple[str, ...] = ()  # volatile; neighbours that do not answer
    checkpoint: tuple[int, str] | None = None  # count on the node, newest name
    checkpoint_at: float = -math.inf  # when that was recorded, UTC seconds
    activity: tuple[RankActivity, ...] = ()  # volatile; as of activity_at, monotonic
    activity_at: float = 0.0
    idle_since: float | None = None  # volatile; of its GPUs, monotonic
    no_output: bool = False  # the task ended without output
    terms: int = 0  # volatile; number of the newest terms that the node has on disk
    terms_at: float = 0.0  # volatile; when its node confirmed them, monotonic
    planned_terms: int = 1  # its plan has terms of this number, or later ones
    member_from: int | None = 1  # number of the first terms that name it; None: none yet
    member_until: int | None = None  # number of the first terms that name it no more
    joined: bool = False  # joined a running gang
    admitted_from: int | None = None  # number of the first terms by which the launcher admits it
    joined_after_s: float = 0.0  # run time of the attempt at that moment
    endpoint: Endpoint | None = None  # of a task that joined
    cut_at: float | None = None  # when its node became unreachable
    left: str | None = None  # why the elastic gang continues without it
    left_force: bool = False  # killed without a grace period
    proof: TaskProof | None = None  # of a LOST task
    mute_at: float | None = None  # volatile; since when its node vouches no more, monotonic
    gpus: tuple[str, ...] = ()  # by UUID; () is the whole node

    @property
    def present(self) -> bool:
        return self.left is None


class LastCheckpoint(msgspec.Struct, frozen=True):
    """`at` is UTC seconds, for display only; `rank` is the node rank."""

    at: float
    name: str
    node: NodeName
    rank: int


class Suspect(msgspec.Struct, frozen=True):
    """A failure that may be the consequence of another one; `ended_at` in monotonic seconds."""

    cause: Cause
    ended_at: float


class Signal(msgspec.Struct, frozen=True):
    """A signal to the ranks on `node` (None: on all nodes), or to `rank` only.

    `late`: ranks that start afterwards get it, too.
    """

    number: int
    name: str
    late: bool = False
    node: NodeName | None = None
    rank: int | None = None


class Unreachable(NamedTuple):
    """A node became unreachable, or (`after_s`) came back after that many seconds."""

    at: float
    node: NodeName
    after_s: float | None = None


@dataclass(slots=True)
class StackDump:
    """A stack dump of an attempt, until `until`. The tasks in `awaited` have not answered.

    `requests` wait for the result. `notes` are sentences on what is missing. `judges`: the dump
    decides whether the gang hangs.
    """

    number: int
    awaited: set[TaskId]
    until: float
    requests: list[int]
    notes: tuple[str, ...]
    judges: bool
    reports: dict[TaskId, StacksReport] = field(default_factory=dict)


@dataclass(slots=True)
class HangSuspicion:
    """A gang that may hang: no stack dump before `again_at`.

    `first` are the stacks of the first dump.
    """

    again_at: float
    first: tuple[RankStacks, ...] = ()


@dataclass(slots=True)
class Attempt:
    job: JobId
    number: int
    tasks: list[Task]
    placed_at: float
    phase: AttemptPhase = AttemptPhase.PREPARING
    master_addr: str = ""
    master_port: int = 0
    machine_id: str = ""  # machine of the port
    endpoints: tuple[Endpoint, ...] = ()  # in node-rank order
    network: str = ""  # its name, and why it was chosen
    fabric: FabricPlan | None = None
    placement_reason: str = ""  # in words, from the placement
    lease_s: float | None = None  # of its tasks; None: they run however long they are cut off
    vouch_key: str = field(default="", repr=False)  # "": its agents do not vouch for each other
    cause: Cause | None = None
    forced: bool = False
    terms: int = 1  # number of the newest terms of its tasks
    limit_terms: int = 1  # number of the first terms with the current time limit
    warned_at: float | None = None  # time of the time limit's warning
    prepared_at: float | None = None
    released_at: float | None = None  # when the gates opened
    started_at: float | None = None  # when every task had started
    stopping_at: float | None = None
    grace_s: float = 0.0  # of the current stop
    shortened: tuple[float, float] | None = None  # when, and the new grace from then
    closed_at: float | None = None
    changes: BoundedLines = field(default_factory=BoundedLines)  # history of the run
    cuts: list[Unreachable] = field(default_factory=list)  # the newest
    signals: list[Signal] = field(default_factory=list)  # the newest
    warned_s: float | None = None  # of the run, when that was due
    proof: Proof | None = None  # traffic evidence, once there is any
    verdicts: int = 0  # recorded changes of that
    checkpoint: LastCheckpoint | None = None  # the newest that any node saw
    hang: HangVerdict | None = None  # current verdict
    hangs: list[tuple[float, HangVerdict]] = field(default_factory=list)  # the newest
    idle: str = ""  # report on idle GPUs, while they are idle

    @property
    def present(self) -> list[Task]:
        """The tasks that have not left the gang. Only elastic gangs lose some."""
        return [task for task in self.tasks if task.present]

    def holds(self, task: Task) -> bool:
        """True if the task's node is kept for this attempt: until the task is over, or, in a gang
        that has not ended, until it has left as well."""
        ending = self.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED)
        return task.state not in OVER or (task.present and not ending)


class Hold(msgspec.Struct, frozen=True):
    """`at` is UTC seconds, for display only."""

    user: str
    reason: str
    at: float


class QueuedWebhook(NamedTuple):
    """An event for a webhook (a value of `WebhookEvent`), queued at `at` (UTC seconds).

    `attempt` is the job's last attempt at that time. `problem` is why delivery has failed so far,
    and volatile.
    """

    event: str
    at: float
    attempt: int
    problem: str = ""


@dataclass(slots=True)
class Job:
    """`spec` includes the later changes by users."""

    id: JobId
    spec: JobSpec
    user: str
    submitted_at: float
    phase: JobPhase = JobPhase.QUEUED
    attempts: list[Attempt] = field(default_factory=list)
    cancel: tuple[str, str, float | None, bool] | None = None  # user, reason, grace_s, force
    cause: Cause | None = None
    infra_used: int = 0
    user_used: int = 0
    avoid: frozenset[NodeName] = frozenset()
    retry_after_s: float = 0.0
    hold: Hold | None = None  # while the job is held
    released: bool = False  # a user released it from a hold
    asked: JobSpec | None = None  # as submitted, if changed since
    rerun_of: JobId | None = None
    notes: BoundedLines = field(default_factory=BoundedLines)  # history of user requests
    ended_at: float | None = None
    revision: int = 0  # count of facts that changed it
    requests: int = 0  # those of users: changes, holds, releases and signals
    key: str = ""  # idempotency key of the submit
    queued_webhooks: dict[tuple[int, int], QueuedWebhook] = field(
        default_factory=dict
    )  # by number and webhook
    webhooks_made: int = 0
    spec_bytes: int = 0  # of the specification as submitted, as JSON
    starts_by: float | None = None  # promised start while it is queued, UTC seconds
    passed_by: int = 0  # jobs behind it that started before, as far as its timeline has them
    left_out_to: int = 0  # attempts up to this number may exist that a restored journal lacks

    @property
    def as_submitted(self) -> JobSpec:
        return self.spec if self.asked is None else self.asked

    @property
    def last_attempt(self) -> int:
        """The number of the last attempt; 0 if there was none."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt. Numbers grow, with a gap after a restore."""
        return max(self.last_attempt, self.left_out_to) + 1

    def is_restored(self, attempt: int) -> bool:
        """True if the attempt was made before the journal was restored."""
        return attempt <= self.left_out_to

    def next_terms(self, attempt: Attempt) -> int:
        """The number of the next terms of an attempt.

        The nodes of a restored attempt may have later terms than the journal, so that it leaves a
        gap.
        """
        return attempt.terms + (TERMS_LEFT_OUT if self.is_restored(attempt.number) else 1)

    def find_attempt(self, number: int) -> Attempt | None:
        """Return the attempt with this number, or None."""
        # The newest is almost always the one that is looked for.
        for attempt in reversed(self.attempts):
            if attempt.number <= number:
                return attempt if attempt.number == number else None
        return None

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with this number. Raises LookupError."""
        found = self.find_attempt(number)
        if found is None:
            raise LookupError(f"job {self.id} has no attempt {number}")
        return found

    def task(self, attempt: int, rank: int) -> Task | None:
        """Return the task of a node rank in an attempt, or None."""
        found = self.find_attempt(attempt)
        return None if found is None or rank >= len(found.tasks) else found.tasks[rank]

    @property
    def current(self) -> Attempt | None:
        """The attempt that is not closed, or None."""
        if self.attempts and self.attempts[-1].phase is not AttemptPhase.CLOSED:
            return self.attempts[-1]
        return None


@dataclass(slots=True)
class State:
    epoch: int = 0
    cluster: str = ""
    secret: str = field(default="", repr=False)  # of the cluster; keys of gangs derive from it
    networks: tuple[str, ...] = ()  # names and CIDRs for gangs, best first
    pools: dict[str, PoolPolicy] = field(default_factory=dict)  # those that are configured
    next_job: int = 1
    first_of_epoch: JobId = JobId(1)  # volatile; jobs from here on lack no attempt in the journal
    people: People = field(default_factory=People)
    enrolment: Enrolment = field(default_factory=Enrolment)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[JobId, str]] = field(default_factory=dict)
    queues: dict[str, list[tuple[int, JobId]]] = field(default_factory=dict)  # by pool, in order
    waiting: WaitingIndex = field(default_factory=WaitingIndex)  # of the jobs in `queues`
    held: set[JobId] = field(default_factory=set)
    spec_bytes: dict[str, int] = field(default_factory=dict)  # by user: of jobs not ended
    ports: dict[str, set[int]] = field(default_factory=dict)  # by machine: leased to attempts
    webhook_jobs: set[JobId] = field(default_factory=set)  # jobs with queued webhooks
    queued_webhooks: dict[str, UserWebhooks] = field(default_factory=dict)  # by user: of those jobs
    elastic: set[JobId] = field(default_factory=set)  # jobs whose running attempt may grow
    awaited: set[NodeName] = field(default_factory=set)  # nodes known before a restore, not settled
    answered: set[NodeName] = field(default_factory=set)  # volatile; awaited ones that said hello
    unknown: UnknownTasks = field(default_factory=UnknownTasks)  # volatile
    failed_inputs: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # by version and origin: processes that they ended
    new_nodes: NewNodes = field(default_factory=NewNodes)  # volatile
    sessions: dict[SessionId, NodeName] = field(default_factory=dict)  # volatile
    running: dict[JobId, float] = field(default_factory=dict)  # volatile; since when, monotonic
    idle_reported: dict[JobId, float] = field(default_factory=dict)  # volatile; when, monotonic
    suspects: dict[TaskId, Suspect] = field(default_factory=dict)  # volatile; first of each task
    stack_dumps: dict[tuple[JobId, int], StackDump] = field(
        default_factory=dict
    )  # volatile; by attempt
    watches: dict[tuple[JobId, int], HangSuspicion] = field(
        default_factory=dict
    )  # volatile; by attempt
    look_number: int = 0  # volatile; of the last stack dump
    disk_full: str = ""  # volatile; why nothing new starts
    judged_from: float = 0.0  # volatile; no liveness verdict before, monotonic
    plan: QueuePlan = field(default_factory=QueuePlan)  # volatile; of the last pass over the queues
    forgotten: int = 0  # volatile; count of archived jobs

    def attempt(self, job: JobId, number: int) -> Attempt | None:
        owner = self.jobs.get(job)
        return None if owner is None else owner.find_attempt(number)

    def policy(self, pool: str) -> PoolPolicy:
        """The policy of a pool's queue."""
        return self.pools.get(pool, DEFAULT_POLICY)

    def task(self, name: TaskId) -> Task | None:
        """Return the task with this id, or None. Raises BadId if `name` is not a task id."""
        job, number, rank = parse_task_id(name)
        owner = self.jobs.get(job)
        return None if owner is None else owner.task(number, rank)

    def find_task(self, name: TaskId) -> Task | None:
        """Return the task with this id, or None, also if `name` is not a task id."""
        try:
            return self.task(name)
        except BadId:
            return None


def make_tasks(
    job: JobId,
    attempt: int,
    nodes: tuple[NodeName, ...],
    gpus: tuple[tuple[str, ...], ...] = (),
) -> list[Task]:
    """Create the tasks of a new attempt, one per node, in node-rank order.

    `gpus` are their GPUs; () if each task has its whole node.
    """
    return [
        Task(
            task_id(job, attempt, rank),
            job,
            attempt,
            rank,
            node,
            gpus=gpus[rank] if gpus else (),
        )
        for rank, node in enumerate(nodes)
    ]

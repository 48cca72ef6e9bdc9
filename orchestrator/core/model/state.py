"""What the coordinator knows. Only `evolve` changes it, by facts; everyone else reads.

The fields of a node below `volatile` belong to this process: they are not in the journal, and a
new epoch begins without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from muster.fabric.traffic_verdict import Proof
from muster.protocol.control_channel import Inventory, Prepared, RankReport, Refusal, StacksReport
from muster.protocol.disks import DiskHealth
from muster.protocol.hangs import HangVerdict, RankActivity, RankStacks
from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import JobId, NodeName, SessionId, TaskId, parse_task_id, task_id
from muster.protocol.interfaces import Endpoint
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import TaskState
from muster.protocol.traffic import FabricReport, PortHealth
from muster.spec.model import JobSpec
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.fabric_plan import FabricPlan
from orchestrator.core.model.history import Lines
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import AdminState, Drain, Fault, LinkState, MassOutage


class Share(NamedTuple):
    """What an attempt has of a node: these GPUs by UUID, and of CPUs and memory what it asked for.
    `whole`: nobody else has anything of it, whatever its GPUs are.
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
    # The attempts that have it or a part of it, until they are closed.
    holders: dict[tuple[JobId, int], Share] = field(default_factory=dict)
    drain: Drain | None = None  # while it is out of service
    drains: int = 0  # how many there have been
    faults: tuple[Fault, ...] = ()  # one a job, the last of them; until it is resumed
    faults_gone: int = 0  # how many there were before those, and are not forgiven
    spared: str = ""  # why it was not quarantined, when it was to be
    hardware: tuple[tuple[float, HardwareEvent], ...] = ()  # the last, until it is resumed
    hardware_heard: tuple[str, int] = ("", -1)  # boot and number of the last of all
    # volatile
    link: LinkState = LinkState.OFFLINE
    session: SessionId | None = None
    peer: str = ""
    connected_at: float = 0.0
    heard_at: float = 0.0
    lease_until: float = 0.0
    ahead_s: float = 0.0  # of its wall clock
    instance: str = ""
    lives: tuple[float, ...] = ()  # when other instances took over, the last of them
    claimed: tuple[str, float] | None = None  # by another agent: from where, when
    ports: tuple[PortHealth, ...] = ()  # of RDMA, those that are not as they were
    disks: tuple[DiskHealth, ...] = ()  # that are full or hang
    survivors: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)  # of SIGKILL
    protocol: int = 1  # that we speak with its agent

    @property
    def in_service(self) -> bool:
        """Whether jobs may be given it, were it connected and free."""
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
    exit: ExitStatus | None = None
    ranks: tuple[RankReport, ...] = ()
    stopped_by: str = ""
    traffic: FabricReport | None = None  # volatile until it has ended
    silent: tuple[str, ...] = ()  # volatile; addresses of neighbours that do not answer it
    checkpoint: tuple[int, str] | None = None  # how many its node saw, the last one's name
    activity: tuple[RankActivity, ...] = ()  # volatile; as of activity_at, monotonic
    activity_at: float = 0.0
    idle_since: float | None = None  # volatile; its GPUs, monotonic
    no_output: bool = False  # it has ended and has written nothing
    joined: bool = False  # when the gang was running
    endpoint: Endpoint | None = None  # of one that joined
    cut_at: float | None = None  # since when its node cannot be reached
    left: str | None = None  # why an elastic gang goes on without it
    left_force: bool = False  # then it is not asked to end, but killed
    gpus: tuple[str, ...] = ()  # by UUID; () is all that the node has

    @property
    def present(self) -> bool:
        return self.left is None


class LastCheckpoint(msgspec.Struct, frozen=True):
    """`at` is UTC seconds, only ever shown; `rank` is the node's."""

    at: float
    name: str
    node: NodeName
    rank: int


class Suspect(msgspec.Struct, frozen=True):
    """A failure that may be the consequence of another one; `ended_at` in monotonic seconds."""

    cause: Cause
    ended_at: float


class Signal(msgspec.Struct, frozen=True):
    """To the ranks on `node`, or on all nodes; to `rank` only where that is given.

    `late`: ranks that begin after it get it, too.
    """

    number: int
    name: str
    late: bool = False
    node: NodeName | None = None
    rank: int | None = None


class Unreachable(NamedTuple):
    """When a node could not be reached any more, or (`after_s`) was back, and after how long."""

    at: float
    node: NodeName
    after_s: float | None = None


@dataclass(slots=True)
class StackDump:
    """At the stacks of an attempt, until `until`; `awaited` have not answered. `requests` are of
    those who want to know, `notes` what is missing; `judges`: it is to tell whether it hangs."""

    number: int
    awaited: set[TaskId]
    until: float
    requests: list[int]
    notes: tuple[str, ...]
    judges: bool
    reports: dict[TaskId, StacksReport] = field(default_factory=dict)


@dataclass(slots=True)
class HangSuspicion:
    """A gang that may hang: not to be looked at before `again_at`, where it stood at the `first`
    look."""

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
    machine_id: str = ""  # whose port that is
    endpoints: tuple[Endpoint, ...] = ()  # in node-rank order
    network: str = ""  # which one that is, and why
    fabric: FabricPlan | None = None
    why_there: str = ""  # in words, as it was placed
    cause: Cause | None = None
    forced: bool = False
    warned_at: float | None = None  # the ranks were to be told that the time limit is near
    prepared_at: float | None = None
    released_at: float | None = None  # the gates were opened
    started_at: float | None = None  # every task had started
    stopping_at: float | None = None
    grace_s: float = 0.0  # of the stop that has begun
    shortened: tuple[float, float] | None = None  # when that was, and to which grace from there
    closed_at: float | None = None
    changes: Lines = field(default_factory=Lines)  # while it ran
    cuts: list[Unreachable] = field(default_factory=list)  # the last of them
    signals: list[Signal] = field(default_factory=list)  # the last of them
    warned_limit_s: float | None = None  # the time limit of which they were warned
    proof: Proof | None = None  # what carries its traffic, once that is known
    checkpoint: LastCheckpoint | None = None  # the last that any of its nodes saw
    hang: HangVerdict | None = None  # as long as it is so
    hangs: list[tuple[float, HangVerdict]] = field(default_factory=list)  # the last of them
    idle: str = ""  # what was told of its GPUs, as long as it is so

    @property
    def present(self) -> list[Task]:
        """The tasks of the gang as it is; all of them, but in an elastic one."""
        return [task for task in self.tasks if task.present]


class Hold(msgspec.Struct, frozen=True):
    """`at` is UTC seconds, only ever shown."""

    user: str
    reason: str
    at: float


class QueuedWebhook(NamedTuple):
    """What a webhook of a job is to be told (a value of `Told`), since when (UTC seconds), after so
    many attempts; `problem`: why that did not succeed so far. The latter is volatile."""

    event: str
    at: float
    attempt: int
    problem: str = ""


@dataclass(slots=True)
class Job:
    """`spec` is as its users have changed it since."""

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
    hold: Hold | None = None  # while it is held
    released: bool = False  # it was held before
    asked: JobSpec | None = None  # as it was submitted, where that was changed
    rerun_of: JobId | None = None
    notes: Lines = field(default_factory=Lines)  # what its users did to it
    ended_at: float | None = None
    revision: int = 0  # how many facts have changed it
    key: str = ""  # the idempotency key of its submit
    notices: dict[tuple[int, int], QueuedWebhook] = field(
        default_factory=dict
    )  # by number and webhook
    notices_made: int = 0

    @property
    def as_submitted(self) -> JobSpec:
        return self.spec if self.asked is None else self.asked

    def task(self, attempt: int, rank: int) -> Task | None:
        """The task of a node rank in one of its attempts, if there is one."""
        if not 1 <= attempt <= len(self.attempts):
            return None
        tasks = self.attempts[attempt - 1].tasks
        return tasks[rank] if rank < len(tasks) else None

    @property
    def current(self) -> Attempt | None:
        """The attempt that has not been closed, if there is one."""
        if self.attempts and self.attempts[-1].phase is not AttemptPhase.CLOSED:
            return self.attempts[-1]
        return None


@dataclass(slots=True)
class State:
    epoch: int = 0
    cluster: str = ""
    networks: tuple[str, ...] = ()  # names and CIDRs that gangs are to use, the best first
    next_job: int = 1
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[JobId, str]] = field(default_factory=dict)
    queues: dict[str, list[tuple[int, JobId]]] = field(default_factory=dict)  # by pool, in order
    held: set[JobId] = field(default_factory=set)
    ports: dict[str, set[int]] = field(default_factory=dict)  # by machine: leased to attempts
    telling: set[JobId] = field(default_factory=set)  # that have notices
    elastic: set[JobId] = field(default_factory=set)  # whose running attempt may grow
    sessions: dict[SessionId, NodeName] = field(default_factory=dict)  # volatile
    running: dict[JobId, float] = field(default_factory=dict)  # volatile; since when, monotonic
    idle_told: dict[JobId, float] = field(default_factory=dict)  # volatile; when, monotonic
    suspects: dict[TaskId, Suspect] = field(default_factory=dict)  # volatile; first of each task
    looks: dict[tuple[JobId, int], StackDump] = field(default_factory=dict)  # volatile; by attempt
    watches: dict[tuple[JobId, int], HangSuspicion] = field(
        default_factory=dict
    )  # volatile; by attempt
    look_number: int = 0  # volatile; of the last look of this process
    disk_full: str = ""  # volatile; why nothing new is begun
    judged_from: float = 0.0  # volatile; before that no silent node is judged, monotonic
    brake: MassOutage | None = None  # volatile; nothing is called lost
    forgotten: int = 0  # volatile; how many jobs have gone to the archive

    def attempt(self, job: JobId, number: int) -> Attempt | None:
        owner = self.jobs.get(job)
        if owner is None or not 1 <= number <= len(owner.attempts):
            return None
        return owner.attempts[number - 1]

    def task(self, name: TaskId) -> Task | None:
        """Find a task by its id. Raises BadId if `name` is no task id."""
        job, number, rank = parse_task_id(name)
        owner = self.jobs.get(job)
        return None if owner is None else owner.task(number, rank)


def make_tasks(
    job: JobId,
    attempt: int,
    nodes: tuple[NodeName, ...],
    gpus: tuple[tuple[str, ...], ...] = (),
) -> list[Task]:
    """The tasks of a new attempt, one a node, in node-rank order; `gpus` are theirs, () where each
    has all of its node."""
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

"""Response types of the HTTP API.

Times are `Timestamp` (RFC 3339, UTC with `Z`), durations float seconds whose names end in `_s`;
`None` means that it has not happened.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.observations.traffic import ProofView
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import Timestamp

# Maximum of a log query.
TAIL_MAX: Final = 100_000
RANK_MAX: Final = 10**9
ATTEMPT_MAX: Final = 10**9


class Reason(msgspec.Struct, frozen=True):
    """A reason: a stable code and a sentence."""

    code: str
    text: str


class Step(msgspec.Struct, frozen=True):
    """An entry of a job's timeline."""

    at: Timestamp
    text: str


class RankView(msgspec.Struct, frozen=True):
    """An ended rank. `stopped`: it ended because Muster stopped it, whatever its exit."""

    rank: int
    exit: ExitStatus | None
    stopped: bool = False


class TaskView(msgspec.Struct, frozen=True):
    """A node's part of an attempt. `warnings` are sentences; `left` is why an elastic gang
    continued without it. `gpus` are the UUIDs of its GPUs; null means all of the node. `start` is
    how its ranks were started; null if the job did not request forks, or until they are.
    """

    node: str
    node_rank: int
    role: str
    state: TaskState
    ranks: tuple[RankView, ...]
    exit: ExitStatus | None
    refusal: Reason | None
    left: str | None = None
    warnings: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    start: RanksStart | None = None


class CheckpointView(msgspec.Struct, frozen=True):
    """The last known checkpoint of an attempt: the newest file in the job's `checkpoint_dir`, and
    the node that reported it.
    """

    at: Timestamp
    name: str
    node: str


class AttemptView(msgspec.Struct, frozen=True):
    """An attempt. `proof` is the verdict on its traffic; None if RDMA does not matter. `hang` is
    the problem while it hangs or is slow.
    """

    number: int
    state: str
    tasks: tuple[TaskView, ...]
    cause: Cause | None
    master: str | None
    placed_at: Timestamp
    started_at: Timestamp | None
    closed_at: Timestamp | None
    network: str | None = None
    fabric: str | None = None
    proof: ProofView | None = None
    checkpoint: CheckpointView | None = None
    hang: str = ""


class JobSummary(msgspec.Struct, frozen=True):
    """A line of `muster ps`. `exit_code` is what `muster wait` returns, once the job has ended.

    `failure` is the failure class, a stable word. A running job reaches its time limit at
    `limit_at`; `limit_pending` are nodes that have not confirmed a changed one. The grace period of
    a stopping job ends at `kill_at`. `held_by` holds the job since `held_at`. `gpus` is the number
    it has, or requests; null if that depends on its nodes. `starts_by` is a promised start.
    `ended_at` is when the coordinator recorded the end; `ended_unseen_at` is when the ranks of the
    last attempt ended, if that was long before.
    """

    id: int
    name: str
    user: str
    state: JobState
    reason: Reason
    nodes: int
    pool: str
    priority: int
    attempt: int
    submitted_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    exit_code: int | None
    failure: str = ""
    limit_at: Timestamp | None = None
    kill_at: Timestamp | None = None
    max_nodes: int | None = None
    nodes_now: int | None = None
    rerun_of: int | None = None
    held_by: str = ""
    held_at: Timestamp | None = None
    gpus: int | None = None
    limit_pending: tuple[str, ...] = ()
    starts_by: Timestamp | None = None
    time_limit_s: float | None = None
    ended_unseen_at: Timestamp | None = None

    @property
    def run_ended_at(self) -> Timestamp | None:
        """The time at which the last run ended; None if the job has not ended."""
        return self.ended_at if self.ended_unseen_at is None else self.ended_unseen_at


class WebhookView(msgspec.Struct, frozen=True):
    """A pending webhook delivery: the event (`started`, `retrying`, `ended`, `hung`, `slow`,
    `idle`), its time, and in `problem` why deliveries have failed so far. `to` is the webhook's
    address.
    """

    to: str
    event: str
    at: Timestamp
    problem: str = ""


class JobView(JobSummary, frozen=True, kw_only=True):
    """`muster show`: the summary, the specification and all attempts. `pending_webhooks` are
    those not delivered yet.
    """

    spec: dict[str, Any]
    attempts: tuple[AttemptView, ...]
    timeline: tuple[Step, ...]
    pending_webhooks: tuple[WebhookView, ...] = ()


class SpecView(msgspec.Struct, frozen=True):
    """A job's specification with all defaults, in the spelling of a job file."""

    job: int
    spec: dict[str, Any]


class Validation(msgspec.Struct, frozen=True):
    """Result of validating a body without submitting it: `spec` with all defaults, `warnings` as
    sentences. `fits`: the known nodes could hold it; otherwise `unfit` is the reason.
    `pool_defaults`: the keys that its pool has filled in.
    """

    spec: dict[str, Any]
    warnings: tuple[str, ...]
    fits: bool
    unfit: str | None = None
    pool_defaults: tuple[str, ...] = ()


class VariableOrigin(Enum):
    """Origin of a variable's value: the plan of the network, a default that the job may change, the
    job file, or Muster alone."""

    FABRIC = "fabric plan"
    DEFAULT = "default"
    JOB = "job file"
    MUSTER = "muster"


class NodeEnvironment(msgspec.Struct, frozen=True):
    """Variables added to the login environment on one node; None before they are decided.
    `origins` has the origin of each.
    """

    node: str
    node_rank: int
    env: dict[str, str] | None
    origins: dict[str, VariableOrigin] = {}


class EnvironmentView(msgspec.Struct, frozen=True):
    """Environment of the job's last attempt (None: no attempt yet), by node. Secret values, judged
    by their names, are `***`. `truncated`: further nodes are left out, as the answer would be too
    large; ask for one of them.
    """

    job: int
    attempt: int | None
    nodes: tuple[NodeEnvironment, ...]
    truncated: bool = False


class JobList(msgspec.Struct, frozen=True):
    """A page of jobs, newest first. `cursor` requests the next page. A page may be short and still
    have a cursor, because a page visits a limited number of jobs.
    """

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None


class InterfaceView(msgspec.Struct, frozen=True):
    """A network interface of a node; `kind` as in `muster.protocol.observations.interfaces`."""

    name: str
    kind: str
    addresses: tuple[str, ...]
    running: bool
    rdma: bool
    speed_mbps: int


class GpuView(msgspec.Struct, frozen=True):
    """A GPU of a node. `uuid`, `memory_bytes` and `numa_node` are null if unknown. `fault` is why
    jobs cannot have it; `job` is the job that has it, with its attempt.
    """

    index: int
    pci: str
    uuid: str | None
    model: str
    memory_bytes: int | None
    numa_node: int | None
    fault: str | None
    job: int | None
    attempt: int | None


class DrainView(msgspec.Struct, frozen=True):
    """A drain of a node: by whom, when and why. At `ends_at`, running jobs are asked to end; None
    lets them continue. With `after_checkpoint`, a job leaves after its next checkpoint.
    `quarantine`: an automatic drain, because of the failures of `jobs`.
    """

    user: str
    reason: str
    at: Timestamp
    ends_at: Timestamp | None = None
    quarantine: bool = False
    jobs: tuple[int, ...] = ()
    after_checkpoint: bool = False


class FaultView(msgspec.Struct, frozen=True):
    """A job that failed because of a node. Since then, `since` attempts have succeeded there."""

    job: int
    attempt: int
    text: str
    since: int


class HardwareView(msgspec.Struct, frozen=True):
    """An event of a node's hardware. `grade` is shown (not a hardware fault), note, or critical,
    which drains the node.
    """

    at: Timestamp
    grade: str
    text: str


class RdmaView(msgspec.Struct, frozen=True):
    """Jobs can use `ports` of the `expected` ports of the class `group`. `why` is the reason if
    there are none, as text that follows the node's name. Nodes of one `kind` are interchangeable
    for a gang.
    """

    group: str
    ports: int
    expected: int
    kind: str
    why: str


class SettingView(msgspec.Struct, frozen=True):
    """A setting of an agent that a coordinator may give: its value as JSON, and its origin."""

    name: str
    value: str
    origin: str


class NodeView(msgspec.Struct, frozen=True):
    """A node. `address` is where a gang's peers reach it, `peer` the source of its agent's
    connection. `connected_s` is the age of the connection, None without one. `jobs` are all jobs on
    the node, `job` and `attempt` the first of them. `gpus` is the number for jobs, `gpus_used` the
    number in use; `devices` are all GPUs, if the agent can identify them. `admin` is active,
    draining (jobs are still there) or drained. `faults` are jobs that failed because of it since
    its last resume and are not forgiven; the last of them, after `faults_before` others. `hardware`
    has its last events since then. `rdma` is the last reported RDMA equipment, None if unknown.
    `unenforced` are the limits of jobs, and what else keeps jobs apart, that are not enforced
    there, each with the reason.
    `settings` are those that a coordinator may give, as they are in force.
    """

    name: str
    link: str
    state: Reason
    address: str
    pool: str
    gpus: int
    gpu_model: str
    cpus: int
    memory_bytes: int
    labels: dict[str, str]
    job: int | None
    attempt: int | None
    last_seen_s: float | None
    version: str
    warnings: tuple[str, ...] = ()
    hostname: str = ""
    python: str = ""
    interfaces: tuple[InterfaceView, ...] = ()
    peer: str = ""
    connected_s: float | None = None
    jobs: tuple[int, ...] = ()
    gpus_used: int = 0
    devices: tuple[GpuView, ...] = ()
    admin: str = "active"
    drain: DrainView | None = None
    faults: tuple[FaultView, ...] = ()
    hardware: tuple[HardwareView, ...] = ()
    rdma: RdmaView | None = None
    faults_before: int = 0
    unenforced: dict[str, str] = {}
    settings: tuple[SettingView, ...] = ()


class NodeList(msgspec.Struct, frozen=True):
    """A page of nodes, sorted by name; `cursor` requests the next page, if any. Nodes that have
    joined and never connected are among them: their inventory is empty.

    After a restore, `awaited` names the nodes that have not said hello, with those of which only
    the name is known, and `held` says why no job is placed. `warnings` are about the coordinator:
    its certificate or its CA ends soon.
    """

    nodes: tuple[NodeView, ...]
    cursor: str | None = None
    awaited: tuple[str, ...] = ()
    held: str = ""
    warnings: tuple[str, ...] = ()


class EventView(msgspec.Struct, frozen=True):
    """A fact of the journal. `seq` orders them; `fields` are those of the fact. `id` is where a
    reader resumes. In another journal (after a restore), the same `seq` has another id.
    """

    seq: int
    at: Timestamp
    kind: str
    job: int | None
    text: str
    fields: dict[str, Any]
    id: str = ""


class EventList(msgspec.Struct, frozen=True):
    events: tuple[EventView, ...]


class EventsEnd(msgspec.Struct, frozen=True):
    """Data of the last event (`end`) of an event stream. `final`: the job has ended, and no more
    events follow. Otherwise a reader resumes after the last id.
    """

    final: bool
    reason: str = ""


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of one stream, in exactly one of `data` (valid UTF-8) and `data_b64`.

    `cursor` resumes the merged tail after this record; `offset` and `len` count bytes of this
    stream; `ts` is when the agent read them. A record with `gap` has no bytes: it explains why the
    bytes from `offset` on are delayed or were never stored.
    """

    attempt: int
    node: str
    rank: int | None
    stream: str
    offset: int
    len: int
    ts: Timestamp
    cursor: str
    data: str | None = None
    data_b64: str | None = None
    node_rank: int | None = None
    gap: str | None = None


class LogTrailer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line of a log stream. Without it, the stream was cut. `end`: no more bytes
    follow.
    """

    end: bool
    state: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    cursor: str | None = None


class FieldProblem(msgspec.Struct, frozen=True):
    """A wrong field of a request."""

    field: str
    value: str
    message: str
    hint: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error response (`application/problem+json`, RFC 9457). `code` is stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    request_id: str = ""
    problems: tuple[FieldProblem, ...] = ()


class VersionView(msgspec.Struct, frozen=True):
    """The version, the caller's user, and by pool the folder that it sets for its jobs."""

    version: str
    protocol_min: int
    protocol_max: int
    epoch: int
    user: str = ""
    role: str = ""
    teams: tuple[str, ...] = ()
    address: str = ""
    code_bytes_max: int = 0
    workdirs: dict[str, str] = {}

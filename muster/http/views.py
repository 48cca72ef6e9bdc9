"""What the HTTP API answers: the types that the coordinator fills in and the client reads.

Times are `Timestamp` (RFC 3339, UTC with `Z`), durations float seconds whose names end in `_s`;
`None` is what has not happened.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import Timestamp
from muster.protocol.traffic import ProofView

# The most of a query for logs.
TAIL_MAX: Final = 100_000
RANK_MAX: Final = 10**9
ATTEMPT_MAX: Final = 10**9


class Reason(msgspec.Struct, frozen=True):
    """Why something is as it is: a stable code and a sentence."""

    code: str
    text: str


class Step(msgspec.Struct, frozen=True):
    """One line of a job's timeline."""

    at: Timestamp
    text: str


class RankView(msgspec.Struct, frozen=True):
    """`stopped`: it ended because we told it to, however it ended."""

    rank: int
    exit: ExitStatus | None
    stopped: bool = False


class TaskView(msgspec.Struct, frozen=True):
    """One node's part of an attempt. `warnings` are sentences; `left`: why an elastic gang went on
    without it. `gpus` are the UUIDs of those it was given; null: all of its node.
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


class CheckpointView(msgspec.Struct, frozen=True):
    """The last checkpoint that an attempt is known to have written: the newest file in the job's
    `checkpoint_dir`, and the node that saw it."""

    at: Timestamp
    name: str
    node: str


class AttemptView(msgspec.Struct, frozen=True):
    """One try. `proof` says what carried its traffic; None where there is no RDMA to speak of.
    `hang`: what is wrong while it hangs or is slow.
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
    """A line of `muster ps`. `exit_code` is what `muster wait` returns, once it has ended.

    `failure` is the class of what went wrong, a stable word. `limit_at`: when a running job's time
    limit is over; `kill_at`: when the grace of one that is being stopped is. `held_by` and
    `held_at`: who holds it, and since when; `rerun_of`: the job that it is another run of. `gpus`:
    how many it has, or asks for where it has none; null where that depends on the nodes it gets.
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


class NoticeView(msgspec.Struct, frozen=True):
    """What a webhook is still to be told: of which event (`started`, `retrying`, `ended`, `hung`,
    `slow`, `idle`), since when, and (`problem`) why that did not succeed so far. `to` is where the
    webhook is."""

    to: str
    event: str
    at: Timestamp
    problem: str = ""


class JobView(JobSummary, frozen=True, kw_only=True):
    """`muster show`: the summary, the specification and all attempts. `notices`: of what its
    webhooks have not heard yet."""

    spec: dict[str, Any]
    attempts: tuple[AttemptView, ...]
    timeline: tuple[Step, ...]
    notices: tuple[NoticeView, ...] = ()


class SpecView(msgspec.Struct, frozen=True):
    """A job's specification, every default filled in, in the spelling of a job file."""

    job: int
    spec: dict[str, Any]


class Validation(msgspec.Struct, frozen=True):
    """What a submit would make of a body, without one: `spec` with every default filled in,
    `warnings` as sentences. `fits`: the nodes that are known could hold it; `unfit` says why not.
    `pool_defaults`: the keys that its pool has filled in.
    """

    spec: dict[str, Any]
    warnings: tuple[str, ...]
    fits: bool
    unfit: str | None = None
    pool_defaults: tuple[str, ...] = ()


class NodeEnvironment(msgspec.Struct, frozen=True):
    """What the processes of one node get beyond what a login has; None before it is decided."""

    node: str
    node_rank: int
    env: dict[str, str] | None


class EnvironmentView(msgspec.Struct, frozen=True):
    """The environment of the job's last attempt (None: no attempt yet), by node. Values whose names
    say that they are secret are `***`.
    """

    job: int
    attempt: int | None
    nodes: tuple[NodeEnvironment, ...]


class JobList(msgspec.Struct, frozen=True):
    """A page of jobs, newest first; `cursor` asks for the next one, which there is also where this
    one has fewer than were asked for: a page looks at so many jobs and no more.
    """

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None


class InterfaceView(msgspec.Struct, frozen=True):
    """One network interface of a node; `kind` as in `muster.protocol.interfaces`."""

    name: str
    kind: str
    addresses: tuple[str, ...]
    running: bool
    rdma: bool
    speed_mbps: int


class GpuView(msgspec.Struct, frozen=True):
    """One GPU of a node. `uuid`, `memory_bytes` and `numa_node` are null where they are not known;
    `fault`: why no job is given it; `job`: the one that has it, in which attempt.
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
    """Who took a node out of service, when and why. `ends_at`: then what runs there is asked to
    end, None: it may go on; with `after_checkpoint` a job leaves once it has written one.
    `quarantine`: the coordinator itself did, for the failures of `jobs`.
    """

    user: str
    reason: str
    at: Timestamp
    ends_at: Timestamp | None = None
    quarantine: bool = False
    jobs: tuple[int, ...] = ()
    after_checkpoint: bool = False


class FaultView(msgspec.Struct, frozen=True):
    """A job that failed by a node's fault. Since then `since` attempts ended well there."""

    job: int
    attempt: int
    text: str
    since: int


class HardwareView(msgspec.Struct, frozen=True):
    """Something that a node's hardware has reported. `grade`: shown (no fault of its own), note, or
    critical, which took the node out of service."""

    at: Timestamp
    grade: str
    text: str


class RdmaView(msgspec.Struct, frozen=True):
    """Of the `expected` ports of the class `group` jobs can use `ports` now; `why`: why none, in
    words that follow the node's name. Nodes of one `kind` agree in all that a gang needs."""

    group: str
    ports: int
    expected: int
    kind: str
    why: str


class NodeView(msgspec.Struct, frozen=True):
    """A node. `address` is the one at which a gang's peers reach it, `peer` the one that its agent
    calls from; `connected_s`: for how long its link stands, None while it does not. `jobs` are all
    that have the node or a part of it, `job` and `attempt` the first of them. `gpus` is how many
    jobs may have, `gpus_used` how many they do; `devices` are all, where the agent can tell them.
    `admin`: active, draining (jobs are still there) or drained. `faults`: jobs that failed by its
    fault since it was last resumed, and were not made up for; the last of them, after
    `faults_before` others. `hardware`: what that has reported since then, the last of it. `rdma`:
    what it has for RDMA as its agent saw it last, None where that is unknown.
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


class NodeList(msgspec.Struct, frozen=True):
    """A page of nodes, in the order of their names; `cursor` asks for the next one, if there is."""

    nodes: tuple[NodeView, ...]
    cursor: str | None = None


class EventView(msgspec.Struct, frozen=True):
    """One fact of the journal. `seq` orders them; `fields` are those of the fact. `id` is where a
    reader goes on: of another journal (a backup was restored) the same `seq` has another one.
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
    """The data of the last event (`end`) of a stream of events. `final`: the job has ended, and
    nothing more will come; else a reader goes on behind the last id it saw."""

    final: bool
    reason: str = ""


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of one stream; exactly one of `data` (valid UTF-8) and `data_b64` is there.

    `cursor` resumes the merged tail after this record; `offset` and `len` count bytes of this
    stream; `ts` is when the agent read them. A record with `gap` has no bytes: it says why those
    from `offset` on are not here yet, or were never stored.
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
    """The last line of a log stream: without it the stream was cut. `end`: nothing more will
    come."""

    end: bool
    state: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    cursor: str | None = None


class NodeVerdict(msgspec.Struct, frozen=True):
    """Whether a node could be taken for a job now, and why not. `free_by`: the time limit of `job`,
    which has it, ends that at the latest then; None where it has none.
    """

    node: str
    can: bool
    reason: Reason
    job: int | None = None
    free_by: Timestamp | None = None


class JobAhead(msgspec.Struct, frozen=True):
    """One that is before another in its queue."""

    id: int
    name: str
    user: str
    priority: int
    nodes: int


class AttemptStory(msgspec.Struct, frozen=True):
    """Where an attempt ran and why there; how it ended, and what came of that."""

    number: int
    nodes: tuple[str, ...]
    why_there: str
    network: str
    ended: str
    then: str
    fabric: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """Of `GET /v1/jobs/{id}/explain`: why a job waits, runs where it does, or ended.

    `text` is the whole in a sentence. Of a job that waits: `wanted` and `ready` count nodes,
    `nodes` has a verdict on each, `place` is its place in the queue from 1 (None: not in it),
    `ahead` are the first of those before it. `starts_by` is by the time limits of what runs and
    waits before it, at the latest; `forecast` says so in words, or why it is unknown. `hints` say
    what would start it sooner. `supposing`: all this would be so, if what it says were.
    """

    job: JobSummary
    text: str
    wanted: int = 0
    ready: int = 0
    starts_now: bool = False
    nodes: tuple[NodeVerdict, ...] = ()
    place: int | None = None
    ahead: tuple[JobAhead, ...] = ()
    starts_by: Timestamp | None = None
    forecast: str = ""
    hints: tuple[str, ...] = ()
    attempts: tuple[AttemptStory, ...] = ()
    supposing: str = ""


class FieldProblem(msgspec.Struct, frozen=True):
    """One wrong field of a request."""

    field: str
    value: str
    message: str
    hint: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error answer (`application/problem+json`, RFC 9457). `code` is stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    request_id: str = ""
    problems: tuple[FieldProblem, ...] = ()


class VersionView(msgspec.Struct, frozen=True):
    version: str
    protocol_min: int
    protocol_max: int
    epoch: int
    user: str = ""
    role: str = ""

"""Messages between the coordinator and an agent over the control link.

Reports go up, commands go down. Every message about a task carries the task's id, which includes
the attempt. Reports are cumulative, and commands state the desired result. So a repeated or late
message does no harm, and a new connection begins by sending everything again.

Fields are added with defaults, tags are never renamed or reused, unknown fields are ignored.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from muster.protocol.git_code import GitCode
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.given import Given
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.fabric import NodeFabric, NodeRdma, TaskFabric
from muster.protocol.observations.gpus import GpuDevice, IdleGpus, usable
from muster.protocol.observations.hangs import RankActivity, RankStacks, RecordedRank
from muster.protocol.observations.hardware_events import EVENTS_MAX, HardwareEvent
from muster.protocol.observations.interfaces import Interface
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.observations.tasks import TaskObservations
from muster.protocol.observations.traffic import PortHealth
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState

# The protocols that this release speaks; both sides agree on the newest. A new number is needed
# only for a message or field that an older peer would misunderstand.
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resources of a node, probed by its agent or configured.

    `address` is the local IP address of the route to the coordinator, or the configured one.
    `interfaces` are all that a gang could use; an agent that reports none is reached at `address`.
    `machine_id` identifies the host: agents on one host share its ports. `python` is the default
    interpreter of jobs. `hostname` is the node's own name, which may differ from its name in the
    cluster. `devices` are its GPUs, including excluded ones; `gpus` is the number for jobs. An
    agent that cannot identify its GPUs lists none. `rdma` is None if unknown. `unenforced` are the
    limits of jobs that are not enforced there, with reasons. `git`: it can fetch code with git.
    """

    address: str
    machine_id: str
    interface: str = ""
    gpus: int = 0
    gpu_model: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    pool: str = "default"
    labels: dict[str, str] = {}
    python: str = ""
    shared_host: bool = False
    hostname: str = ""
    interfaces: tuple[Interface, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    rdma: NodeRdma | None = None
    unenforced: dict[str, str] = {}
    git: bool = False


def with_devices(inventory: Inventory, devices: tuple[GpuDevice, ...]) -> Inventory:
    """Return the same node with these GPUs."""
    given = usable(devices)
    model = next((device.model for device in given if device.model), inventory.gpu_model)
    return replace(inventory, devices=devices, gpus=len(given), gpu_model=model)


class NodeObservations(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that an agent observes of its node.

    `ports` are abnormal RDMA ports, `disks` those that are full or hang, `hardware` the last events
    of this boot. `refuses_jobs`: why the node would refuse every job, "" if it takes them.
    `no_torch`: why jobs that name no interpreter cannot use torch there, "" if they can or that is
    not known. `settings` are those that a coordinator may give, as they are in force.
    """

    inventory: Inventory
    ports: tuple[PortHealth, ...] = ()
    disks: tuple[DiskHealth, ...] = ()
    hardware: tuple[HardwareEvent, ...] = ()
    refuses_jobs: str = ""
    settings: tuple[NodeSetting, ...] = ()
    no_torch: str = ""


class NodeChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of NodeObservations. None is unchanged; `hardware` are new events."""

    interfaces: tuple[Interface, ...] | None = None
    devices: tuple[GpuDevice, ...] | None = None
    rdma: NodeRdma | None = None
    ports: tuple[PortHealth, ...] | None = None
    disks: tuple[DiskHealth, ...] | None = None
    hardware: tuple[HardwareEvent, ...] = ()
    refuses_jobs: str | None = None
    settings: tuple[NodeSetting, ...] | None = None
    no_torch: str | None = None
    unenforced: dict[str, str] | None = None


def diff(old: NodeObservations, new: NodeObservations) -> NodeChanges:
    """Return the changes that lead from `old` to `new`."""
    was, now = old.inventory, new.inventory
    return NodeChanges(
        interfaces=None if now.interfaces == was.interfaces else now.interfaces,
        devices=None if now.devices == was.devices else now.devices,
        rdma=None if now.rdma == was.rdma else now.rdma,
        ports=None if new.ports == old.ports else new.ports,
        disks=None if new.disks == old.disks else new.disks,
        hardware=tuple(event for event in new.hardware if event not in old.hardware),
        refuses_jobs=None if new.refuses_jobs == old.refuses_jobs else new.refuses_jobs,
        settings=None if new.settings == old.settings else new.settings,
        no_torch=None if new.no_torch == old.no_torch else new.no_torch,
        unenforced=None if now.unenforced == was.unenforced else now.unenforced,
    )


def merge(old: NodeObservations, changes: NodeChanges) -> NodeObservations:
    """Return the observations after the changes."""
    return NodeObservations(
        merge_inventory(old.inventory, changes),
        old.ports if changes.ports is None else changes.ports,
        old.disks if changes.disks is None else changes.disks,
        (*old.hardware, *changes.hardware)[-EVENTS_MAX:],
        old.refuses_jobs if changes.refuses_jobs is None else changes.refuses_jobs,
        old.settings if changes.settings is None else changes.settings,
        old.no_torch if changes.no_torch is None else changes.no_torch,
    )


def merge_inventory(old: Inventory, changes: NodeChanges) -> Inventory:
    """Return the inventory after the changes; `old` itself if they do not concern it."""
    if changes.interfaces is not None:
        old = replace(old, interfaces=changes.interfaces)
    if changes.devices is not None:
        old = with_devices(old, changes.devices)
    if changes.unenforced is not None:
        old = replace(old, unenforced=changes.unenforced)
    return old if changes.rdma is None else replace(old, rdma=changes.rdma)


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a node cannot do its part. `code` is a RefusalCode, or one of a later version.
    `node_fault`: the node is to blame, so another node might succeed.
    """

    code: str
    text: str
    node_fault: bool = False


class Fingerprint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Software versions of a job, as reported by its own interpreter."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of a prepared task, from which the coordinator arranges the gang. Paths are on the
    node.

    `ports` are free TCP ports of the node outside its ephemeral range, tested by binding. `boot_s`
    is how long the job's interpreter took to import torch, 0 if it did not import it. `hostname` is
    the node's own name, `addresses` are all of its addresses. `fabric` is from a probe for this
    task, None if the agent does not report it. `nccl` is the directory in which the agent reads
    NCCL's log, "" if it does not. `peer_port` is the UDP port at which the agent answers agents of
    the gang, 0 if it does not.
    """

    address: str
    ports: tuple[int, ...]
    gpus: int
    log_dir: str
    workdir: str
    scratch: str
    output: str
    hostfile: str
    interface: str = ""
    fingerprint: Fingerprint = Fingerprint()
    boot_s: float = 0.0
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    fabric: NodeFabric | None = None
    nccl: str = ""
    peer_port: int = 0


class RankReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A training process.

    For a failed rank, `error` is what torch recorded, else the end of its standard error; `stderr`
    is that end if `error` is not. `at_s` is when it ended, in seconds since its program started.
    `stopped`: it ended after Muster stopped it. `oom`: the kernel killed it for lack of memory, and
    `oom_said` is the kernel's message as text. `disk_full`: the disk of its task directory was full
    when it failed. `kernel`: the kernel's log lines about it. `memory_max`: the memory limit of its
    task in bytes, if the kernel has killed processes because of it.
    """

    rank: int
    local_rank: int = 0
    pid: int = 0
    exit: ExitStatus | None = None
    error: str = ""
    stderr: str = ""
    at_s: float | None = None
    stopped: bool = False
    oom: bool = False
    oom_said: str = ""
    disk_full: bool = False
    kernel: str = ""
    memory_max: int = 0


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True, tag="task"):
    """Everything that an agent knows of a task.

    `running_s` is how long the program has run, on the node's own clock. `first_failed` is the rank
    that failed first on the node. `stopped_by` is set if Muster ended it: stop, kill, lease, limit
    or shim_lost. `launcher_said` is the end of the log of a failed launcher. `warnings` are
    sentences about findings while the gang was arranged. `survivors` are processes that SIGKILL
    does not end: the task is not clean until the kernel releases them. `doomed`: their SIGKILL is
    pending, so none of them will ever run its program again; without survivors, no process is left,
    but no exit record can be written. `no_output`: the task has ended without writing anything.
    `terms` is the number of the newest terms that are on the node's disk, 0 if none are.
    `stop_stored`: a stop of the task is on the node's disk, or nothing of the task is left there.
    From then on, the node vouches for no task of the attempt. `warned_s` is the `warn_s` of the
    terms of whose time limit the node has warned its ranks. `start` is None until torchrun starts
    its first rank.
    """

    task: TaskId
    state: TaskState
    refusal: Refusal | None = None
    prepared: Prepared | None = None
    listening: bool = False
    ranks: tuple[RankReport, ...] = ()
    exit: ExitStatus | None = None
    first_failed: int | None = None
    running_s: float = 0.0
    stopped_by: str = ""
    launcher_said: str = ""
    warnings: tuple[str, ...] = ()
    survivors: tuple[int, ...] = ()
    doomed: bool = False
    no_output: bool = False
    observed: TaskObservations = TaskObservations()
    terms: int = 0
    stop_stored: bool = False
    warned_s: float | None = None
    start: RanksStart | None = None


class Hello(msgspec.Struct, frozen=True, omit_defaults=True, tag="hello"):
    """The first message of a connection: the agent's identity, its node, and all of its tasks.

    `cluster` and `epoch_seen` are those of the coordinator that it served last. `instance`
    identifies the agent process, `wall_s` is its wall clock. `protocol_min` and `protocol_max` are
    the supported range; they have fixed defaults, because the sender omits a default and the
    receiver fills in its own. `more`: ended tasks are left out for lack of room; they are reported
    after the welcome. `made_s` is when this was made: seconds of CLOCK_BOOTTIME, which all
    processes of one boot share; 0 is unknown. One that arrives after a newer one of the same
    `agent_id` and `boot_id`, on a connection given up before, counts for nothing.
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    observed: NodeObservations
    tasks: tuple[TaskReport, ...] = ()
    epoch_seen: int = 0
    cluster: str = ""
    protocol_min: int = 1
    protocol_max: int = 1
    instance: str = ""
    wall_s: float | None = None
    more: bool = False
    made_s: float = 0.0

    @property
    def inventory(self) -> Inventory:
        return self.observed.inventory


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True, tag="heartbeat"):
    """Sent at the agent's own interval, and on every change of its node; `sent_s` is its clock and
    is returned in the answer. `wall_s` is the agent's wall clock.
    """

    sent_s: float
    wall_s: float | None = None
    changes: NodeChanges = NodeChanges()


class StacksReport(msgspec.Struct, frozen=True, omit_defaults=True, tag="stacks"):
    """Answers DumpStacks, with its `epoch` and `number`. `activity` is current; `problem` is why no
    rank has a stack.
    """

    task: TaskId
    epoch: int
    number: int
    ranks: tuple[RankStacks, ...] = ()
    activity: tuple[RankActivity, ...] = ()
    recorded: tuple[RecordedRank, ...] = ()
    problem: str = ""


Report = Hello | TaskReport | Heartbeat | StacksReport


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True, tag="welcome"):
    """Answers Hello. `cluster` identifies the coordinator's journal. The agent ends its tasks that
    `keep` does not name. `protocol` is the newest common version. Renews leases, as the answer to a
    heartbeat does. `settings` and `users`: see GiveSettings and GiveUsers."""

    epoch: int
    session: SessionId
    heartbeat_s: float
    version: str
    cluster: str = ""
    keep: tuple[TaskId, ...] = ()
    protocol: int = 1
    settings: tuple[NodeSetting, ...] = ()
    users: tuple[str, ...] | None = None


class Refused(msgspec.Struct, frozen=True, omit_defaults=True, tag="refused"):
    """Answers Hello if the agent is refused; the connection is then closed. `soon`: a retry may
    succeed shortly, without an operator."""

    code: str
    text: str
    soon: bool = False


class HeartbeatAck(msgspec.Struct, frozen=True, omit_defaults=True, tag="heartbeat_ack"):
    """Renews all leases of the node's tasks from `sent_s`, when (on its clock) the agent asked."""

    sent_s: float


class PrepareTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="prepare"):
    """Check everything, run `setup`, and bring the bootstrap to its gate, without starting the job.

    `ports` is the number of free ports to find and report. `gpus` are the UUIDs of the task's
    exclusive GPUs, all of which must exist; empty means all. `lease_s`: the node ends the task once
    the coordinator has not answered for so long; None: never. The agent reports changed files in
    `checkpoint_dir`. `preflight`: also check disks and mounts, and refuse if one is nearly full or
    hangs. `idle`: limits for idle GPUs. `ticket`: to fetch `bundle`. `user` submitted the job.
    `cpus` and `memory_bytes`: its requests of a node, 0 for none. `git`: fetch this code before
    `setup`, and run the job in it. `grows`: nodes may join the gang while it runs. `meets`:
    addresses and port of the rendezvous of a gang that runs already.
    """

    task: TaskId
    launcher: str
    workdir: str | None
    python: str | None
    setup: tuple[str, ...]
    env: dict[str, str]
    timeout_s: float
    ports: int = 0
    gpus: tuple[str, ...] = ()
    lease_s: float | None = None
    checkpoint_dir: str | None = None
    preflight: bool = False
    idle: IdleGpus | None = None
    bundle: str | None = None
    ticket: str = ""
    user: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    git: GitCode | None = None
    grows: bool = False
    meets: tuple[tuple[str, ...], int] | None = None


class RendezvousCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Check before the start that the nodes of a gang reach each other.

    The agent of the task `launcher`, on `node`, holds the port at `address`; the others connect to
    it from `source`, their own address, until it answers with that task's id, or until `timeout_s`
    has passed.
    """

    launcher: TaskId
    node: str
    address: str
    port: int
    source: str = ""
    timeout_s: float = 10.0


class ArrangeTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="arrange"):
    """The gang's plan for this node: its command, its environment and its peers.

    `hosts` maps names to addresses, in node-rank order; a node may have several names, and a gang
    of one node has no table. `others` maps a node's address to its further addresses: a name with
    one of them leads to the right node, too. `listen_port` is set on the node whose rank 0 opens
    the rendezvous port: the others start once it listens. `rendezvous` is set as long as no process
    of the gang can have been started. `ranks` is set if Muster starts the ranks itself: for each,
    in local order, its variables besides `env`, including RANK. `interpreter`: `argv` are arguments
    for the job's Python. `stop_signal` and `grace_s` are used if the node itself ends the task,
    because a rank has failed or the lease has expired. `fabric` is the node's part of the fabric
    plan. `start`: there is no other node to wait for, so open the start gate afterwards. `key`
    authenticates the agents of the attempt to each other; "" if they do not vouch.
    """

    task: TaskId
    argv: tuple[str, ...]
    env: dict[str, str]
    hosts: tuple[tuple[str, str], ...]
    hostfile: str
    listen_port: int | None = None
    others: dict[str, tuple[str, ...]] = {}
    grace_s: float = 30.0
    rendezvous: RendezvousCheck | None = None
    stop_signal: str = "SIGTERM"
    ranks: tuple[dict[str, str], ...] = ()
    interpreter: bool = False
    fabric: TaskFabric | None = None
    start: bool = False
    key: str = ""
    terms: Terms | None = None


class StartTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="start"):
    """Open the gate."""

    task: TaskId


class StopTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="stop"):
    """End the task: signal the ranks, wait `grace_s`, kill the tree. `force` kills at once."""

    task: TaskId
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    force: bool = False


class SignalTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="signal"):
    """Signal the task's ranks without ending the task. Signals of a task are numbered from 1: a
    signal that was delivered, or is older, is not delivered again.

    `ranks`: those on this node; empty means all. `late`: also ranks that start and handle it later.
    """

    task: TaskId
    signal: str
    number: int
    ranks: tuple[int, ...] = ()
    late: bool = True


class DumpStacks(msgspec.Struct, frozen=True, omit_defaults=True, tag="look"):
    """Dump the stacks of the task's ranks, and change nothing. `number` counts those of an epoch.

    `threads`: all threads. `recorder`: also trigger a dump of NCCL's flight recorder.
    """

    task: TaskId
    epoch: int
    number: int
    threads: bool = False
    recorder: bool = False


class ForgetTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="forget"):
    """The coordinator has the task's end on disk. Remove the task once its logs are shipped."""

    task: TaskId


Command = (
    Welcome
    | Refused
    | HeartbeatAck
    | PrepareTask
    | ArrangeTask
    | StartTask
    | StopTask
    | SignalTask
    | ChangeTerms
    | DumpStacks
    | ForgetTask
    | Given
)

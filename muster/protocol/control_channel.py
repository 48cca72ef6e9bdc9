"""What the coordinator and an agent say to each other over the control link.

Reports go up, commands go down. Every message about a task carries the task's id, hence its
attempt.
Reports are cumulative (each holds all that is known of its task) and commands state what is
wanted, so
that a repeated or late one does no harm and a new connection begins by saying everything again.

Evolution: fields are added with defaults, tags are never renamed or reused, unknown fields are
ignored.
"""

from __future__ import annotations

import msgspec

from muster.protocol.disks import DiskHealth
from muster.protocol.fabric import NodeFabric, NodeRdma, TaskFabric
from muster.protocol.gpus import GpuDevice, IdleGpus, usable
from muster.protocol.hangs import RankActivity, RankStacks, RecordedRank
from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.interfaces import Interface
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.protocol.traffic import FabricReport, PortHealth

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""The window of protocols that this release speaks. Coordinator and agent agree on the newest that
both speak. A new number is needed only for a message or field that an older peer would
misunderstand."""


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node has, as its agent found or was told it.

    `address` is the IP address on the way to the coordinator, or the one its configuration names.
    `interfaces` are all that a gang could meet on; an agent that reports none is reached at
    `address`. `machine_id` names the host: agents of one host share its ports. `python` is the
    default interpreter of jobs. `hostname` is what the node calls itself, which may differ from its
    name in the cluster. `devices` are its GPUs, those that no job is given among them; `gpus` is
    how many jobs may have. An agent that cannot tell them apart names none. `rdma` is None where
    nothing is known of it.
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


def with_devices(inventory: Inventory, devices: tuple[GpuDevice, ...]) -> Inventory:
    """The same node with these GPUs."""
    given = usable(devices)
    model = next((device.model for device in given if device.model), "")
    return msgspec.structs.replace(
        inventory, devices=devices, gpus=len(given), gpu_model=model or inventory.gpu_model
    )


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node cannot do its part. `code` is a RefusalCode, or a later version's. `node_fault`:
    for its own sake, another node might do."""

    code: str
    text: str
    node_fault: bool = False


class Fingerprint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Versions of what a job runs on, as its own interpreter reports them."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the coordinator needs of a prepared task to arrange the gang; paths are the node's own.

    `ports` are free TCP ports of the node outside its ephemeral range, tested by binding.
    `boot_s` is how long the job's interpreter took to import torch, 0 where it did not have to.
    `hostname` is what the node calls itself, `addresses` are all that it has. `fabric` is of a
    probe made for this task, None from an agent that does not tell. `nccl` is the folder in which
    the agent reads NCCL's lines, "" where it does not.
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


class RankReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One training process.

    Of one that failed, `error` is what torch recorded, else the tail of its standard error, and
    `stderr` that tail where `error` is not; `at_s` is when it ended, in seconds of its program's
    run; `stopped`: it ended after we had told it to; `oom`: the kernel killed it for memory, and
    `oom_said` what the kernel wrote of that, in words. `disk_full`: as it failed, the disk of its
    task's folder was full.
    `kernel`: the lines of the kernel's log about it.
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


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node saw of a job's checkpoints since its task began there: so many times something
    `fresh` had settled, `name` is the newest file of the last time, noticed `ago_s` before this was
    said."""

    fresh: int
    name: str
    ago_s: float = 0.0


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True, tag="task"):
    """All that an agent knows of one task.

    `running_s` is how long the program has run, on the node's own clock. `first_failed` is the
    rank that
    failed first there. `stopped_by` is set when we ended it: stop, kill, lease or shim_lost.
    `launcher_said` is the end of the log of a launcher that failed.
    `warnings` are sentences for a person, about what was found while the gang was arranged.
    `traffic` is what carried the gang's, as far as this node knows. `silent` are the addresses of
    neighbours in the gang whose machines answered this node once, and do not any more.
    `survivors` are processes that SIGKILL does not end: the task is not clean until the kernel lets
    go of them. `doomed`: none of them will ever run its program again, as their SIGKILL is pending.
    `activity` says of each rank whether it moves, as of this report; () where that is not watched.
    `idle_s`: for so long its GPUs have been idle, as PrepareTask has it; None where they have not,
    or not that long, or cannot be read. `no_output`: the task has ended and has written nothing.
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
    traffic: FabricReport | None = None
    silent: tuple[str, ...] = ()
    survivors: tuple[int, ...] = ()
    doomed: bool = False
    checkpoint: Checkpoint | None = None
    activity: tuple[RankActivity, ...] = ()
    idle_s: float | None = None
    no_output: bool = False


class Hello(msgspec.Struct, frozen=True, omit_defaults=True, tag="hello"):
    """The first message of a connection: who speaks, what it has, and every task it still holds.

    `cluster` and `epoch_seen` are those of the coordinator that it served last. `instance` is this
    life of the agent, `wall_s` what its wall clock says. `ports` are RDMA ports that are not as
    they were, `hardware` the last events of this boot, `disks` those that are full or hang.
    `protocol_min` and `protocol_max` are its window; a default that moved with the version would be
    left out by one side and read as its own by the other.
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory
    tasks: tuple[TaskReport, ...] = ()
    epoch_seen: int = 0
    cluster: str = ""
    protocol_min: int = 1
    protocol_max: int = 1
    instance: str = ""
    wall_s: float | None = None
    ports: tuple[PortHealth, ...] = ()
    hardware: tuple[HardwareEvent, ...] = ()
    disks: tuple[DiskHealth, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True, tag="heartbeat"):
    """Sent at the agent's own pace; `sent_s` is its clock and comes back in the answer.

    `interfaces`, `devices`, `ports`, `rdma` and `disks` are there where they have changed since
    Hello, `hardware` where something has happened; `wall_s` is its wall clock.
    """

    sent_s: float
    interfaces: tuple[Interface, ...] | None = None
    wall_s: float | None = None
    devices: tuple[GpuDevice, ...] | None = None
    ports: tuple[PortHealth, ...] | None = None
    rdma: NodeRdma | None = None
    hardware: tuple[HardwareEvent, ...] = ()
    disks: tuple[DiskHealth, ...] | None = None


class StacksReport(msgspec.Struct, frozen=True, omit_defaults=True, tag="stacks"):
    """Answers LookTask, with its `epoch` and `number`. `activity` is as of now; `problem` is why no
    rank has a stack."""

    task: TaskId
    epoch: int
    number: int
    ranks: tuple[RankStacks, ...] = ()
    activity: tuple[RankActivity, ...] = ()
    recorded: tuple[RecordedRank, ...] = ()
    problem: str = ""


Report = Hello | TaskReport | Heartbeat | StacksReport


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True, tag="welcome"):
    """Answers Hello. `cluster` names the journal that the coordinator serves. A task that the agent
    holds and `keep` does not name is to be stopped and removed. `protocol` is the newest that both
    speak. `leases` are those of tasks whose lease is not `lease_s`, in seconds.
    """

    epoch: int
    session: SessionId
    lease_s: float
    heartbeat_s: float
    version: str
    cluster: str = ""
    keep: tuple[TaskId, ...] = ()
    protocol: int = 1
    leases: dict[TaskId, float] = {}


class Refused(msgspec.Struct, frozen=True, omit_defaults=True, tag="refused"):
    """Answers Hello when the agent cannot be let in; the connection is then closed.

    `soon`: it may be in a moment, without anybody's help.
    """

    code: str
    text: str
    soon: bool = False


class HeartbeatAck(msgspec.Struct, frozen=True, omit_defaults=True, tag="heartbeat_ack"):
    """Renews the lease from `sent_s`, the moment (on the agent's clock) at which it asked."""

    sent_s: float


class PrepareTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="prepare"):
    """Check everything, run `setup`, bring the bootstrap to its gate; start nothing of the job.

    `ports` is how many free ports to find and report. `gpus` are the UUIDs of those that the task
    has, all of them there and nobody else's; empty: all of the node, whatever it has. `lease_s` is
    the task's own lease, None where it is that of the welcome. Changes of files in
    `checkpoint_dir` are to be reported. `preflight`: look at disks and mounts, too, and refuse
    where one is nearly full or does not answer. `idle`: when its GPUs are to be called idle.
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


class RendezvousCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a gang is to prove, before its start, that it meets.

    The agent of the task `launcher`, on `node`, holds the port at `address`; the others connect to
    it from `source`, their own address, until it answers with that task's id, for `timeout_s`.
    """

    launcher: TaskId
    node: str
    address: str
    port: int
    source: str = ""
    timeout_s: float = 10.0


class ArrangeTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="arrange"):
    """The gang's plan for this node: its command, its environment and who the others are.

    `hosts` maps names to addresses, in node-rank order; a node may have several names, and a gang
    of one node has no table. `others` are, by a node's address there, other ones at which it and
    no other node is: a name that leads to one leads to the right node. `listen_port` is set on
    the node whose rank 0 opens the rendezvous port: the others start once it listens. `meeting` is
    there as long as no process of the gang can have been started. `ranks` is set where we start
    the ranks ourselves: for each, in local order, what its environment has besides `env`,
    its RANK among it. `interpreter` says that `argv` are words for the job's Python. `stop_signal`
    and `grace_s` are for an end that the node begins by itself, as a rank has failed or the lease
    is over. `fabric` is what the gang's fabric plan means for this node. `start`: there is nobody
    to wait for, so open the gate when that is done.
    """

    task: TaskId
    argv: tuple[str, ...]
    env: dict[str, str]
    hosts: tuple[tuple[str, str], ...]
    hostfile: str
    listen_port: int | None = None
    others: dict[str, tuple[str, ...]] = {}
    grace_s: float = 30.0
    meeting: RendezvousCheck | None = None
    stop_signal: str = "SIGTERM"
    ranks: tuple[dict[str, str], ...] = ()
    interpreter: bool = False
    fabric: TaskFabric | None = None
    start: bool = False


class StartTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="start"):
    """Open the gate."""

    task: TaskId


class StopTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="stop"):
    """End the task: signal its ranks, wait `grace_s`, kill the tree. `force` kills at once."""

    task: TaskId
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    force: bool = False


class SignalTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="signal"):
    """Signal the task's ranks, and end nothing. Signals of a task are numbered from 1: one that was
    carried out, or is older than that, is not sent again.

    `ranks`: to those of them that are this node's; empty: to all. `late`: ranks that begin after it
    came get it, too, once they heed it.
    """

    task: TaskId
    signal: str
    number: int
    ranks: tuple[int, ...] = ()
    late: bool = True


class DumpStacks(msgspec.Struct, frozen=True, omit_defaults=True, tag="look"):
    """Say where the task's ranks stand, and change nothing. `number` counts the looks of an epoch.

    `threads`: all threads; `recorder`: have NCCL's flight recorder write down what it knows, too.
    """

    task: TaskId
    epoch: int
    number: int
    threads: bool = False
    recorder: bool = False


class ForgetTask(msgspec.Struct, frozen=True, omit_defaults=True, tag="forget"):
    """The task's end is durable with the coordinator; the agent removes it once its logs are
    shipped."""

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
    | DumpStacks
    | ForgetTask
)

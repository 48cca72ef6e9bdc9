"""What an agent knows. Only `evolve` changes it, by facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.core.inputs import TaskPaths
from agent.core.network_phase import NetworkPhase
from agent.core.shim_protocol import ShimStatus
from muster.protocol.control_channel import ArrangeTask, Inventory, PrepareTask, Refusal, StopTask
from muster.protocol.disks import DiskHealth
from muster.protocol.fabric import NodeFabric
from muster.protocol.hangs import RankActivity
from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.traffic import FabricReport, PortHealth


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is; the same for the whole of its life, but for the network and the GPUs that
    it has.

    `run_as` is the user jobs run as ("" is the agent's own), `instance` this life of the agent.
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory
    run_as: str = ""
    allow_root_jobs: bool = False
    instance: str = ""


@dataclass(slots=True)
class HeldTask:
    """A task whose folder is on this node (or is being made)."""

    id: TaskId
    prepare: PrepareTask | None = None  # None for one that an earlier life of the agent began
    gpus: tuple[str, ...] = ()  # by UUID; () is all of the node
    lease_s: float | None = None  # where it is not that of all tasks
    paths: TaskPaths | None = None
    ports: tuple[int, ...] = ()
    status: ShimStatus | None = None
    status_at: float = 0.0
    fabric: NodeFabric | None = None  # None until it has been looked at
    traffic: FabricReport | None = None
    silent: tuple[str, ...] = ()  # addresses of neighbours that do not answer any more
    checkpoint: tuple[int, str, float] | None = None  # how many, the last one's name, since when
    activity: tuple[RankActivity, ...] = ()  # as of activity_at
    activity_at: float = 0.0
    idle_since: float | None = None  # its GPUs, monotonic
    failure: Refusal | None = None  # no shim could be made
    arrange: ArrangeTask | None = None
    network: NetworkPhase = NetworkPhase.NONE
    denied: Refusal | None = None  # the network could not be arranged
    warnings: tuple[str, ...] = ()
    started: bool = False  # the gate is to be open
    stop: StopTask | None = None
    forgotten: bool = False
    no_output: bool = False  # it has ended, and none of its logs has a byte
    logs_stored: bool = False

    def lease_until(self, until: float, lease_s: float) -> float:
        """When its lease ends, where one of `lease_s` ends at `until`."""
        return until if self.lease_s is None else until - lease_s + self.lease_s


@dataclass(slots=True)
class State:
    identity: Identity
    linked: bool = False  # a connection is open
    welcomed: bool = False  # and the coordinator has answered Hello on it
    epoch: int = 0
    protocol: int = 1  # that the coordinator and we speak
    cluster: str = ""  # whose tasks these are; outlives the agent
    heartbeat_s: float = 5.0
    lease_s: float = 0.0
    heard_at: float = 0.0
    dialled_at: float = 0.0
    lease_until: float | None = None
    told: Inventory | None = None  # in the last Hello
    ports: tuple[PortHealth, ...] = ()  # of RDMA, those that are not as they were
    told_ports: tuple[PortHealth, ...] = ()  # in the last Hello
    disks: tuple[DiskHealth, ...] = ()  # that are full or hang
    told_disks: tuple[DiskHealth, ...] = ()  # in the last Hello
    hardware: tuple[HardwareEvent, ...] = ()  # the last of this boot
    told_hardware: tuple[HardwareEvent, ...] = ()  # in the last Hello
    tasks: dict[TaskId, HeldTask] = field(default_factory=dict)
    buried: set[TaskId] = field(default_factory=set)  # stopped unseen on this link

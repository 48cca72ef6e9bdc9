"""The state of an agent. Only `apply` changes it, by facts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from agent.core.inputs import TaskPaths
from agent.core.network_phase import NetworkPhase
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimStatus, ShimUser
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    NodeObservations,
    PrepareTask,
    Refusal,
    StopTask,
)
from muster.protocol.link.terms import Member, Terms
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.hangs import RankActivity
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.traffic import FabricReport


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The identity of this agent; constant for the whole process.

    `instance` identifies this agent process. At UDP port `peer_port` it answers agents of its gangs
    (0: it does not). `hide_processes`: jobs do not see the processes of other users. `git_config`:
    the site's configuration for git that fetches code ("": none).
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    allow_root_jobs: bool = False
    instance: str = ""
    peer_port: int = 0
    hide_processes: bool = False
    git_config: str = ""


@dataclass(slots=True)
class HeldTask:
    """A task whose directory is on this node or is being created."""

    id: TaskId
    cluster: str = ""  # whose task it is
    prepare: PrepareTask | None = None  # None if an earlier agent process started the task
    gpus: tuple[str, ...] = ()  # by UUID; () means all GPUs of the node
    lease_s: float | None = None  # None: the task runs however long the coordinator is away
    paths: TaskPaths | None = None
    user: ShimUser | None = None  # None: the agent's own
    ports: tuple[int, ...] = ()
    status: ShimStatus | None = None
    status_at: float = 0.0
    fabric: NodeFabric | None = None  # None until it has been probed
    traffic: FabricReport | None = None
    silent: tuple[str, ...] = ()  # addresses of neighbours that have stopped answering
    # count, name of the last one, time of the last one
    checkpoint: tuple[int, str, float] | None = None
    activity: tuple[RankActivity, ...] = ()  # as of activity_at
    activity_at: float = 0.0
    idle_since: float | None = None  # of its GPUs, monotonic
    failure: Refusal | None = None  # no shim could be started
    arrange: ArrangeTask | None = None
    network: NetworkPhase = NetworkPhase.NONE
    denied: Refusal | None = None  # the network could not be arranged
    warnings: tuple[str, ...] = ()
    prolog: str = ""  # the last line of the site's prolog
    epilog: str = ""  # and of its epilog
    started: bool = False  # the coordinator allows the start
    stop: StopTask | None = None
    forgotten: bool = False
    terms: Terms | None = None  # the newest
    stored: TaskRecord | None = None  # the newest that is on disk
    # The other members of its gang, which vouch for it: see agent.core.vouching.
    peers: dict[TaskId, Member] = field(default_factory=dict)
    round: int = 0
    asked_at: float | None = None  # begin of the round
    awaited: set[TaskId] = field(default_factory=set)  # members that have not answered in it
    voted_at: float | None = None  # begin of the last round that all have answered
    no_output: bool = False  # the task has ended and all its logs are empty
    logs_stored: bool = False

    @property
    def vouches(self) -> bool:
        """True if the agents of the task's gang vouch for each other."""
        return self.arrange is not None and bool(self.arrange.key)

    @property
    def confirms_end(self) -> bool:
        """True if a stop is stored and confirmed even after the task's end: its gang vouches, or
        did so in an earlier boot."""
        return self.vouches or (self.stored is not None and self.stored.plan is None)

    @property
    def stop_stored(self) -> bool:
        """True if a stop is on disk, or the task never got a folder."""
        if self.stored is not None and self.stored.stop is not None:
            return True
        return self.stop is not None and self.failure is not None and self.paths is None

    def lease_until(self, acknowledged_at: float | None) -> float:
        """Until when the task may run, if the coordinator has last answered what the agent asked
        at `acknowledged_at`. Infinity if it has no lease."""
        if self.lease_s is None:
            return math.inf
        votes = [at for at in (acknowledged_at, self.voted_at) if at is not None]
        return max(votes, default=-math.inf) + self.lease_s


@dataclass(slots=True)
class State:
    identity: AgentIdentity
    observed: NodeObservations
    reported: NodeObservations | None = None  # as in the last Hello
    linked: bool = False  # a connection is open
    welcomed: bool = False  # the coordinator has answered Hello on it
    epoch: int = 0
    cluster: str = ""  # whose tasks these are; outlives the agent process
    heartbeat_s: float = 5.0
    given: tuple[NodeSetting, ...] = ()  # by the coordinator
    users: tuple[str, ...] | None = None  # who may submit; None if the coordinator names none
    heard_at: float = 0.0
    dialled_at: float = 0.0
    acknowledged_at: float | None = None  # when the agent asked for the last answer
    tasks: dict[TaskId, HeldTask] = field(default_factory=dict)
    stopped_unseen: set[TaskId] = field(default_factory=set)  # stopped unseen on this link

"""Facts about the coordinator, its disk, and the nodes that it knows."""

from __future__ import annotations

from msgspec import field

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Inventory
from orchestrator.core.facts.base import EPHEMERAL, SYNC, ClusterFact, Inert
from orchestrator.core.model.plan import PoolPolicy


class EpochStarted(ClusterFact, Inert, durability=SYNC, reschedules=True, milestone=True):
    """A coordinator process took over the journal, without the connections of the previous one.

    `cluster` is the name that the journal's first owner gave it. `networks` are those that the
    configuration wants gangs to use, `pools` its settings of pools. No new job gets a number below
    `first_job`, as a restored journal may lack some jobs. Keys of gangs derive from `secret`, which
    no API shows.
    """

    epoch: int
    cluster: str = ""
    networks: tuple[str, ...] = ()
    first_job: int = 0
    pools: dict[str, PoolPolicy] = field(default_factory=dict)
    secret: str = ""

    def describe(self) -> str:
        return f"coordinator started, epoch {self.epoch}"


class NodeRegistered(ClusterFact, Inert, durability=SYNC, reschedules=True, milestone=True):
    """A node has joined, or its description has changed.

    Rate-limited for each node. The journal keeps the first and the newest one of a process.
    """

    node: NodeName
    agent_id: str
    boot_id: str
    version: str
    inventory: Inventory

    def describe(self) -> str:
        return f"node {self.node} registered (agent {self.version})"


class InputFailed(ClusterFact, Inert, durability=SYNC, reschedules=False, milestone=True):
    """An input could not be decided because of a bug of this version: it was refused, or `ended`
    the process. `origin` names what it was about."""

    version: str
    origin: str
    error: str
    ended: bool = False

    def describe(self) -> str:
        what = "ended the coordinator" if self.ended else "was refused"
        return f"an input ({self.origin}) {what}: {self.error}"


class SpaceChanged(ClusterFact, Inert, durability=EPHEMERAL, reschedules=True, milestone=False):
    """The journal's disk is full (a sentence), or has room again ("")."""

    problem: str


class LivenessPaused(ClusterFact, durability=EPHEMERAL, reschedules=False, milestone=False):
    """This process was not running for a while: it judges no silent node before `until`."""

    until: float


OfCluster = EpochStarted | NodeRegistered | InputFailed | SpaceChanged | LivenessPaused

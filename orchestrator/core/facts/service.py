"""Facts about nodes in and out of service. Durable, as those about jobs."""

from __future__ import annotations

import msgspec

from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import JobId, NodeName


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class NodeDrained(_Fact, frozen=True):
    """A node gets no more jobs until it is resumed. A later drain replaces reason and deadline.

    Running jobs continue (`deadline_s` None), are stopped after that many seconds, or at once (0).
    With `after_checkpoint`, each job may leave once it has written its next checkpoint. `jobs`:
    those for whose failures the coordinator itself quarantines the node.
    """

    node: NodeName
    user: str
    reason: str
    deadline_s: float | None = None
    jobs: tuple[JobId, ...] = ()
    after_checkpoint: bool = False


class DrainTimed(_Fact, frozen=True):
    """`left_s` seconds of a drain's deadline are left.

    Recorded from time to time, so that a restart does not grant the whole deadline again.
    """

    node: NodeName
    left_s: float


class NodeRemoved(_Fact, frozen=True):
    """A node is forgotten. A node of that name may join later, without any history."""

    node: NodeName
    user: str


class NodeResumed(_Fact, frozen=True):
    """A node is in service again, and its faults are forgotten."""

    node: NodeName
    user: str


class NodeFaultRecorded(_Fact, frozen=True):
    """An attempt failed by this node's fault: the first of that job on this node."""

    node: NodeName
    of_job: JobId
    attempt: int
    text: str


class NodeFaultsDecayed(_Fact, frozen=True):
    """An attempt ended well on a node that was at fault before.

    The oldest `forgets` of its faults are forgotten.
    """

    node: NodeName
    forgets: int = 0


class QuarantineSkipped(_Fact, frozen=True):
    """A node was not quarantined, because too much of its pool already is."""

    node: NodeName
    reason: str


class HardwareReported(_Fact, frozen=True):
    """A hardware event of a node. `attempts` have the part, or ran out of memory; a HardwareNoted
    follows for each of them."""

    node: NodeName
    event: HardwareEvent
    attempts: tuple[tuple[JobId, int], ...] = ()


class HardwareNoted(_Fact, frozen=True):
    """A hardware event that concerns the attempt, for the history of its job."""

    job: JobId
    attempt: int
    text: str


OfService = (
    NodeDrained
    | DrainTimed
    | NodeRemoved
    | NodeResumed
    | NodeFaultRecorded
    | NodeFaultsDecayed
    | QuarantineSkipped
    | HardwareReported
)

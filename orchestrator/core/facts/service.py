"""What has happened to nodes in and out of service: facts like all others, and kept like them."""

from __future__ import annotations

import msgspec

from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import JobId, NodeName


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class NodeDrained(_Fact, frozen=True):
    """A node gets no job any more until it is resumed. Said again with another reason or deadline,
    these take the place of the first.

    What runs there goes on (`deadline_s` None), is asked to end so many seconds later, or (0) ends
    at once. With `after_checkpoint` each job may go as soon as it has written its next one. `jobs`:
    those for whose failures the coordinator itself quarantines the node.
    """

    node: NodeName
    user: str
    reason: str
    deadline_s: float | None = None
    jobs: tuple[JobId, ...] = ()
    after_checkpoint: bool = False


class DrainTimed(_Fact, frozen=True):
    """Of the deadline of a drain so many seconds are left: written down from time to time, so that
    a restart does not give all of it again."""

    node: NodeName
    left_s: float


class NodeRemoved(_Fact, frozen=True):
    """Nothing is known of a node any more. One of that name may come, as if there had been none."""

    node: NodeName
    user: str


class NodeResumed(_Fact, frozen=True):
    """A node is in service again, and what it was at fault for is forgotten."""

    node: NodeName
    user: str


class NodeFaultRecorded(_Fact, frozen=True):
    """An attempt of a job failed by this node's fault; the first of that job there."""

    node: NodeName
    of_job: JobId
    attempt: int
    text: str


class NodeFaultsDecayed(_Fact, frozen=True):
    """An attempt ended well on a node that was at fault before. The oldest `forgets` of its faults
    are too long ago now."""

    node: NodeName
    forgets: int = 0


class QuarantineSkipped(_Fact, frozen=True):
    """A node was to be quarantined, and was not: too much of its pool is already."""

    node: NodeName
    reason: str


class HardwareReported(_Fact, frozen=True):
    """Something has happened to a node's hardware. `attempts` are those that have the part, or
    whose memory ran out. `noted`: a fact of its own follows for each of them."""

    node: NodeName
    event: HardwareEvent
    attempts: tuple[tuple[JobId, int], ...] = ()
    noted: bool = False


class HardwareNoted(_Fact, frozen=True):
    """What has happened to hardware that the attempt has, in the history of its job."""

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

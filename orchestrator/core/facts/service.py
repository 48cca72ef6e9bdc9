"""Facts about nodes in and out of service. Durable, as those about jobs."""

from __future__ import annotations

from muster.protocol.ids import JobId, NodeName
from muster.protocol.observations.hardware_events import HardwareEvent
from muster.spec.units import duration_text
from orchestrator.core.facts.base import (
    LAZY,
    SYNC,
    AttemptFact,
    BaseFact,
    Inert,
)


class ServiceFact(BaseFact, family=True, milestone=False, revises=False):
    """A fact about the service of a node."""

    node: NodeName


class NodeDrained(ServiceFact, durability=SYNC, reschedules=True):
    """A node gets no more jobs until it is resumed. A later drain replaces reason and deadline.

    Running jobs continue (`deadline_s` None), are stopped after that many seconds, or at once (0).
    With `after_checkpoint`, each job may leave once it has written its next checkpoint. `jobs`:
    those for whose failures the coordinator itself quarantines the node. `left_by`: the job, and
    its user, whose processes survive SIGKILL there.
    """

    user: str
    reason: str
    deadline_s: float | None = None
    jobs: tuple[JobId, ...] = ()
    after_checkpoint: bool = False
    left_by: tuple[JobId, str] | None = None

    def describe(self) -> str:
        ends = "; jobs there leave after their next checkpoint" if self.after_checkpoint else ""
        if self.deadline_s is not None:
            when = f"in {duration_text(self.deadline_s)}" if self.deadline_s else "at once"
            ends += f"; running jobs end {when}"
        return f"drained by {self.user}: {self.reason}{ends}"


class DrainTimed(ServiceFact, durability=LAZY, reschedules=False):
    """`left_s` seconds of a drain's deadline are left.

    Recorded from time to time, so that a restart does not grant the whole deadline again.
    """

    left_s: float

    def describe(self) -> str:
        return f"is drained: running jobs have {duration_text(self.left_s)} left"


class NodeRemoved(ServiceFact, Inert, durability=SYNC, reschedules=True):
    """A node is forgotten. A node of that name may join later, without any history."""

    user: str

    def describe(self) -> str:
        return f"removed by {self.user}"


class NodeResumed(ServiceFact, Inert, durability=SYNC, reschedules=True):
    """A node is in service again, and its faults are forgotten."""

    user: str

    def describe(self) -> str:
        return f"resumed by {self.user}"


class NodeFaultRecorded(ServiceFact, durability=SYNC, reschedules=False):
    """An attempt failed by this node's fault: the first of that job on this node."""

    of_job: JobId
    attempt: int
    text: str

    def describe(self) -> str:
        return f"is at fault for attempt {self.attempt} of job {self.of_job}: {self.text}"


class NodeFaultsDecayed(ServiceFact, Inert, durability=LAZY, reschedules=False):
    """An attempt ended well on a node that was at fault before.

    The oldest `forgets` of its faults are forgotten.
    """

    forgets: int = 0

    def describe(self) -> str:
        gone = f", {self.forgets} of its faults forgiven" if self.forgets else ""
        return f"has succeeded again{gone}"


class QuarantineSkipped(ServiceFact, Inert, durability=SYNC, reschedules=False):
    """A node was not quarantined, because too much of its pool already is."""

    reason: str

    def describe(self) -> str:
        return f"is not quarantined: {self.reason}"


class HardwareReported(ServiceFact, durability=SYNC, reschedules=False):
    """A hardware event of a node. `attempts` have the part, or ran out of memory; a HardwareNoted
    follows for each of them."""

    event: HardwareEvent
    attempts: tuple[tuple[JobId, int], ...] = ()

    def describe(self) -> str:
        return f"reports ({self.event.grade.value}): {self.event.text}"


class HardwareNoted(AttemptFact, Inert, durability=SYNC, reschedules=False, milestone=False):
    """A hardware event that concerns the attempt, for the history of its job."""

    text: str

    def describe(self) -> str:
        return self.text


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

"""Facts about join secrets and the certificates of nodes."""

from __future__ import annotations

from muster.protocol.ids import NodeName
from muster.protocol.text import count
from muster.protocol.timestamp import timestamp
from orchestrator.core.facts.base import EPHEMERAL, SYNC, ClusterFact, Inert
from orchestrator.core.facts.people import OfPeople
from orchestrator.core.model.people import NodeKey


class EnrolmentFact(ClusterFact, Inert, family=True, reschedules=False):
    """A fact about how nodes join. `by` is the user who asked for it."""


class JoinSecretCreated(EnrolmentFact, durability=SYNC, milestone=True):
    """There is a new join secret. The fields are those of JoinSecret."""

    secret: str
    sha256: str
    uses: int
    expires: float
    names: str = "*"
    pool: str = ""
    approve: bool = False
    label: str = ""
    by: str = ""

    def describe(self) -> str:
        who = f"{count(self.uses, 'node')} named {self.names}"
        until = f"{timestamp(self.expires)}"
        return f"{self.by} created the join secret {self.secret} for {who}, valid until {until}"


class JoinSecretRevoked(EnrolmentFact, durability=SYNC, milestone=True):
    """No node joins with the secret any more."""

    secret: str
    by: str = ""

    def describe(self) -> str:
        return f"{self.by} revoked the join secret {self.secret}"


class NodeJoined(EnrolmentFact, durability=SYNC, milestone=True):
    """A node got a certificate with a join secret. With `waits`, it is not accepted before an
    operator does so, because another machine has the name, or all nodes wait.
    """

    node: NodeName
    key: NodeKey
    secret: str
    peer: str = ""
    waits: bool = False

    def describe(self) -> str:
        waits = "; it waits for `muster node accept`" if self.waits else ""
        return f"{self.node} joined from {self.peer} with the join secret {self.secret}{waits}"


class NodeAccepted(EnrolmentFact, durability=SYNC, milestone=True):
    """The waiting certificate is accepted, and replaces those before."""

    node: NodeName
    by: str = ""

    def describe(self) -> str:
        return f"{self.by} accepted the machine that joined as {self.node}"


class NodeRejected(EnrolmentFact, durability=SYNC, milestone=True):
    """The waiting certificate is forgotten."""

    node: NodeName
    by: str = ""

    def describe(self) -> str:
        return f"{self.by} rejected the machine that waited to be {self.node}"


class NodeRevoked(EnrolmentFact, durability=SYNC, milestone=True):
    """No certificate of the node is accepted any more; the next join waits for an operator."""

    node: NodeName
    by: str = ""
    why: str = ""

    def describe(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.by or 'the coordinator'} revoked the certificates of {self.node}{why}"


class NodeKeyRenewed(EnrolmentFact, durability=SYNC, milestone=False):
    """A node got its next certificate. It replaces the current one when the node shows it."""

    node: NodeName
    key: NodeKey

    def describe(self) -> str:
        return f"{self.node} got a new certificate, valid until {timestamp(self.key.expires)}"


class NodeKeyTaken(EnrolmentFact, durability=SYNC, milestone=False):
    """A node showed its next certificate; the one before is not accepted any more."""

    node: NodeName

    def describe(self) -> str:
        return f"{self.node} uses its new certificate"


class JoinedRefused(EnrolmentFact, durability=EPHEMERAL, milestone=False):
    """A node that has joined and is not connected said hello, and was refused."""

    node: NodeName
    why: str


OfEnrolment = (
    JoinSecretCreated
    | JoinSecretRevoked
    | NodeJoined
    | NodeAccepted
    | NodeRejected
    | NodeRevoked
    | NodeKeyRenewed
    | NodeKeyTaken
    | JoinedRefused
)
OfCredentials = OfPeople | OfEnrolment

"""Facts about a restored journal: what it may lack, and the nodes that are waited for."""

from __future__ import annotations

from muster.protocol.ids import JobId, NodeName
from orchestrator.core.facts.base import LAZY, SYNC, ClusterFact, Inert


class JournalRestored(ClusterFact, Inert, durability=SYNC, reschedules=False, milestone=True):
    """The journal up to here is a backup that was restored. `muster restore` writes this record.

    Each job that has not ended leaves out `left_out` numbers of attempts after the last known one,
    and all below `first_attempt`. `attempts` has the last attempt of jobs of which the logs or the
    replaced journal know a later one. Nothing is placed until every registered node, those in
    `nodes` and those that an earlier restore waits for are settled, unless the operator said `go`.
    """

    left_out: int
    nodes: tuple[NodeName, ...] = ()
    attempts: tuple[tuple[JobId, int], ...] = ()
    go: bool = False
    first_attempt: int = 0

    def describe(self) -> str:
        go = "; nodes are not waited for" if self.go else ""
        return f"the journal was restored from a backup{go}"


class RestoredNodeSettled(ClusterFact, Inert, durability=LAZY, reschedules=True, milestone=True):
    """A node that was known before a restore has said hello, and has nothing that the restored
    journal lacks."""

    node: NodeName

    def describe(self) -> str:
        return f"node {self.node} has answered after the restore"


class NodeDeclaredLost(ClusterFact, durability=SYNC, reschedules=True, milestone=True):
    """An operator declares that nothing runs any more on a node that is not connected."""

    node: NodeName
    user: str

    def describe(self) -> str:
        return f"node {self.node} declared lost by {self.user}"


OfRestore = JournalRestored | RestoredNodeSettled | NodeDeclaredLost

"""The times the coordinator's decisions depend on, all in seconds. Set by its configuration."""

from __future__ import annotations

import msgspec


class Quarantine(msgspec.Struct, frozen=True):
    """When a node is taken out of service by itself: at fault in so many different `jobs` (0:
    never), none of which is forgotten. A fault is once `forgiven_after` attempts have ended well on
    the node. Never more than `pool_share` of the nodes of a pool are. So is one whose agent has
    started more often than `restarts` (0: never) within ten minutes.
    """

    jobs: int = 3
    forgiven_after: int = 10
    pool_share: float = 0.25
    restarts: int = 5


class HangLimits(msgspec.Struct, frozen=True):
    """`quiet_s` at the least, and `gaps` times the longest gap, before anything is suspected;
    `slow_s` before a gang that computes, or waits for a disk, is told of. `again_s` is between two
    looks, `look_s` how long an answer is waited for."""

    quiet_s: float = 60.0
    gaps: float = 5.0
    slow_s: float = 600.0
    again_s: float = 5.0
    look_s: float = 20.0

    def of_gap(self, gap_s: float) -> float:
        """How long a silence is suspected whose longest was `gap_s`: before what is slow is told,
        however long one evaluation took, but never within a silence as long as the longest."""
        at_most_s = max(self.slow_s - self.quiet_s, gap_s + self.quiet_s)
        return max(self.quiet_s, min(self.gaps * gap_s, at_most_s))


class Limits(msgspec.Struct, frozen=True):
    """`lease_margin_s` is what the coordinator waits beyond an agent's lease before it calls a
    node lost:
    the time a shim takes to end its task when the lease is over, and what two clocks may drift
    apart in
    the length of a lease. `refusal_wait_s` is how long the others of a gang may take to say
    whether they refuse too, once one has. `blame_wait_s` is how long the gang goes on when a rank
    has failed as ranks do whose peer has failed: whoever failed first is then heard of.
    `traffic_wait_s` is how long a gang on TCP that requires RDMA goes on until all of its nodes
    have said how they fare: one of them alone may be to blame. `brake_s` is how long nothing is
    called lost once most agents have fallen silent at once (0: that is nothing special).
    `own_names` are names of the coordinator's own machine, in lower case: no other one joins with
    such a name.
    """

    lease_s: float = 300.0
    lease_margin_s: float = 30.0
    brake_s: float = 1800.0
    heartbeat_s: float = 5.0
    silence_s: float = 10.0
    prepare_timeout_s: float = 300.0
    refusal_wait_s: float = 1.0
    blame_wait_s: float = 0.5
    traffic_wait_s: float = 10.0
    arrange_timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    quarantine: Quarantine = Quarantine()
    hangs: HangLimits = msgspec.field(default_factory=HangLimits)
    own_names: frozenset[str] = frozenset()

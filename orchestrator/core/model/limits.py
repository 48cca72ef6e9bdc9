"""Limits of the coordinator's decisions, set by its configuration. Times are in seconds."""

from __future__ import annotations

import msgspec

from muster.protocol.observations.node_settings import NodeSetting


class Quarantine(msgspec.Struct, frozen=True):
    """Limits for nodes that the coordinator takes out of service by itself.

    A node is quarantined after faults in `jobs` different jobs (0: never). A fault is forgotten
    once `forgiven_after` attempts have ended well on the node. At most `pool_share` of a pool's
    nodes are quarantined. A node is also drained if its agent starts more than `restarts` times (0:
    never) within ten minutes.
    """

    jobs: int = 3
    forgiven_after: int = 10
    pool_share: float = 0.25
    restarts: int = 5


class HangLimits(msgspec.Struct, frozen=True):
    """Limits of hang detection.

    A hang is suspected after `quiet_s` at the least, and after `gaps` times the longest gap. A gang
    that computes or waits for a disk is reported after `slow_s`. Two stack dumps are `again_s`
    apart, and each waits `look_s` for answers.
    """

    quiet_s: float = 60.0
    gaps: float = 5.0
    slow_s: float = 600.0
    again_s: float = 5.0
    look_s: float = 20.0

    def of_gap(self, gap_s: float) -> float:
        """Return the silence that makes a gang suspect, if its longest gap so far was `gap_s`.

        The result stays below `slow_s`, even after one long evaluation of the model, unless the
        longest gap itself was that long. It is always longer than the longest gap.
        """
        at_most_s = max(self.slow_s - self.quiet_s, gap_s + self.quiet_s)
        return max(self.quiet_s, min(self.gaps * gap_s, at_most_s))


Settings = tuple[NodeSetting, ...]


class CentralSettings(msgspec.Struct, frozen=True):
    """Settings by pool, by label (`rack=a1`) and by name of the nodes that get them. Each has its
    place in the configuration as its origin.
    """

    pools: dict[str, Settings] = {}
    labels: dict[str, Settings] = {}
    names: dict[str, Settings] = {}

    def of(self, name: str, pool: str, labels: dict[str, str]) -> Settings:
        """Return the settings of a node. Those of its name go before those of its labels, and these
        before those of its pool. Of two labels, the later one of the configuration goes before.
        """
        mine = {f"{label}={value}" for label, value in labels.items()}
        groups = (
            self.pools.get(pool, ()),
            *(given for label, given in self.labels.items() if label in mine),
            self.names.get(name, ()),
        )
        found = {setting.name: setting for group in groups for setting in group}
        return tuple(found.values())


class Limits(msgspec.Struct, frozen=True):
    """Limits of leases, phases and verdicts.

    `lease_s` is the lease of gangs that set none. The margin beyond a lease is no setting: see
    `orchestrator.core.model.leases`.

    `refusal_wait_s` is how long the coordinator waits for more refusals after the first one of a
    gang.

    `blame_wait_s` is how long a gang continues after a rank failed in a way that a peer's failure
    may have caused. The rank that failed first may report meanwhile.

    `traffic_wait_s` is how long a gang that requires RDMA continues on TCP. All of its nodes may
    report meanwhile, as one of them alone may be to blame.

    `spec_bytes_max` is the most bytes that the specifications of all jobs that have not ended may
    have together, because they are in memory, and `user_spec_bytes_max` those of one user's jobs.

    `nodes_max` is how many nodes are known, and `new_nodes_per_hour` how many new names join within
    an hour.

    `node_settings` are those of agents that the coordinator gives.

    `own_names` are names of the coordinator's own machine, in lower case. No other machine may join
    under one of them.
    """

    lease_s: float = 300.0
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
    spec_bytes_max: int = 256 << 20
    user_spec_bytes_max: int = 128 << 20
    nodes_max: int = 10_000
    new_nodes_per_hour: int = 2000
    own_names: frozenset[str] = frozenset()
    node_settings: CentralSettings = CentralSettings()

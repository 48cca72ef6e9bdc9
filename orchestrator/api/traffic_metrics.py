"""Metrics of running gangs' traffic, of hanging gangs, and of RDMA ports that are down.

Labels are nodes and their ports, never jobs: one series per HCA, and at most `SERIES_MAX` of a
kind.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from muster.fabric.counters import imbalance, tcp_share
from muster.fabric.traffic_verdict import planned
from muster.protocol.ids import JobId
from muster.protocol.observations.hangs import HangKind
from muster.protocol.observations.traffic import Carrier
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.state import State, Task
from orchestrator.core.monitoring.traffic import proof_line

SERIES_MAX: Final = 20_000

Values = Mapping[tuple[str, ...], float]


def traffic(state: State, jobs: Iterable[JobId]) -> Iterator[tuple[str, Values]]:
    """Yield each family with its values. `jobs` are those that have not ended."""
    carriers: dict[tuple[str, ...], float] = {(one.value,): 0.0 for one in Carrier}
    quiet: dict[tuple[str, ...], float] = {(one.value,): 0.0 for one in HangKind}
    seen: list[Task] = []
    for name in jobs:
        job = state.jobs[name]
        attempt = job.current
        if attempt is None or attempt.phase is not AttemptPhase.RUNNING:
            continue
        if attempt.hang is not None:
            quiet[(attempt.hang.kind.value,)] += 1
        proof = proof_line(job, attempt)
        if proof is not None:
            carriers[(proof.verdict.value,)] += 1
        seen += [task for task in attempt.present if task.traffic is not None]
    yield "muster_running_gangs", carriers
    yield "muster_quiet_gangs", quiet
    rates: dict[tuple[str, ...], float] = {}
    flaps: dict[tuple[str, ...], float] = {}
    uneven: dict[tuple[str, ...], float] = {}
    by_tcp: dict[tuple[str, ...], float] = {}
    for task in seen:
        report = task.traffic
        if report is None:
            continue
        ports = planned(report)
        for port in ports:
            key = (task.node, port.port)
            if not port.why:
                # Tasks on the same node see the same traffic.
                rates[key] = max(rates.get(key, 0.0), port.rate)
            if port.flaps is not None:
                flaps[key] = max(flaps.get(key, 0), port.flaps)
        less, share = imbalance(ports), tcp_share(ports, report.sockets)
        if less is not None:
            uneven[(task.node,)] = less
        if share is not None and ports:
            by_tcp[(task.node,)] = share
    down: dict[tuple[str, ...], float] = {
        (node.name, port.port): 1.0
        for node in state.nodes.values()
        for port in node.ports
        if port.down
    }
    yield "muster_hca_bytes_per_second", _bounded(rates)
    yield "muster_hca_flaps", _bounded(flaps)
    yield "muster_hca_down", _bounded(down)
    yield "muster_rail_imbalance_ratio", _bounded(uneven)
    yield "muster_tcp_share_ratio", _bounded(by_tcp)


def _bounded(values: Values) -> Values:
    return dict(islice(values.items(), SERIES_MAX))

"""Figures of the fabric: of nodes and ports, bounded, and of what runs only."""

from __future__ import annotations

import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.observations.traffic import (
    FabricReport,
    PortFigures,
    PortHealth,
    SocketFigures,
)
from orchestrator.api import traffic_metrics
from orchestrator.api.metrics import FAMILIES
from tests.fabric import nccl_lines as lines
from tests.orchestrator.core.monitoring.test_traffic import said, started, tell
from tests.orchestrator.core.playbook import Cluster

GB = 10**9


def figures(cluster: Cluster) -> dict[str, traffic_metrics.Values]:
    found = dict(traffic_metrics.traffic(cluster.state, [JobId(1)]))
    assert found.keys() <= FAMILIES.keys()
    for name, values in found.items():
        assert all(len(labels) == len(FAMILIES[name].labels) for labels in values)
    return found


def test_a_running_gang_has_figures_by_node_and_port() -> None:
    cluster = Cluster()
    for task in started(cluster):
        ports = (
            PortFigures("mlx5_0:1", planned=True, sent=30 * GB, received=0, rate=4e9, flaps=2),
            PortFigures("mlx5_1:1", planned=True, sent=10 * GB, received=0, rate=1e9),
            PortFigures("mlx5_9:1", planned=True, why="no such file"),
        )
        sockets = (SocketFigures("eth0", 10 * GB, 0),)
        nccl = said(lines.IB_2_18)
        tell(cluster, task, FabricReport(60.0, 30, ports=ports, sockets=sockets, nccl=nccl))
    found = figures(cluster)
    assert found["muster_running_gangs"] == {("proved",): 1, ("tcp",): 0, ("unknown",): 0}
    node = cluster.job(1).attempts[0].tasks[0].node
    assert found["muster_hca_bytes_per_second"][node, "mlx5_0:1"] == 4e9
    assert (node, "mlx5_9:1") not in found["muster_hca_bytes_per_second"]
    assert found["muster_hca_flaps"] == {(n, "mlx5_0:1"): 2 for n in ("n0", "n1")}
    assert found["muster_rail_imbalance_ratio"][(node,)] == 0.5
    assert found["muster_tcp_share_ratio"][(node,)] == 0.2


def test_an_ended_gang_has_no_series() -> None:
    cluster = Cluster()
    tasks = started(cluster)
    for task in tasks:
        ports = (PortFigures("mlx5_0:1", planned=True, sent=GB, received=GB),)
        tell(cluster, task, FabricReport(60.0, 30, ports=ports, nccl=said(lines.IB_2_18)))
    cluster.cancel(1, force=True)
    found = figures(cluster)
    assert found["muster_hca_bytes_per_second"] == {}
    assert sum(found["muster_running_gangs"].values()) == 0


def test_a_port_that_is_down() -> None:
    cluster = Cluster()
    started(cluster)
    ports = (PortHealth("mlx5_3:1", down=True), PortHealth("mlx5_4:1", flaps=1))
    cluster.observe(NodeName("n0"), ports=ports)
    assert figures(cluster)["muster_hca_down"] == {("n0", "mlx5_3:1"): 1.0}


def test_there_are_never_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_metrics, "SERIES_MAX", 3)
    cluster = Cluster()
    for task in started(cluster):
        ports = tuple(PortFigures(f"mlx5_{n}:1", planned=True, sent=GB) for n in range(8))
        tell(cluster, task, FabricReport(60.0, 30, ports=ports))
    assert len(figures(cluster)["muster_hca_bytes_per_second"]) == 3

"""A fabric plan for people."""

from __future__ import annotations

import pytest

from muster.cli.output.fabric_view import print_fabric
from muster.cli.output.traffic_view import print_traffic
from muster.http.fabric import FabricView
from muster.protocol.observations.traffic import Carrier, JobProof, NodeProof, PortFigures


def test_a_refused_gang_waits_for_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    why = "rdma: required, but n1 has no RDMA device"
    print_fabric(FabricView(7, 1, "required", None, refused=why))
    said = capsys.readouterr().out
    assert said == f"job 7, attempt 1  rdma: required\n  the gang was refused: {why}\n"
    print_fabric(FabricView(7, 1, "required", None))
    assert "there is no plan yet" in capsys.readouterr().out


def test_counters_that_no_port_has_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ports = tuple(PortFigures(f"mlx5_{at}:1", why="there are no counters") for at in range(12))
    node = NodeProof(node="n1", node_rank=0, said="nothing", ports=ports)
    print_traffic(JobProof(Carrier.UNKNOWN, "unknown", nodes=(node,)))
    said = capsys.readouterr().out
    assert "no counters of its 12 HCAs: there are no counters" in said
    assert "mlx5_" not in said

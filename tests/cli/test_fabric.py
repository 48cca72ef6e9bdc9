"""A fabric plan for people."""

from __future__ import annotations

import pytest

from muster.cli.fabric import print_fabric
from muster.protocol.fabric_view import FabricView


def test_a_refused_gang_waits_for_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    why = "rdma: required, but n1 has no RDMA device"
    print_fabric(FabricView(7, 1, "required", None, refused=why))
    said = capsys.readouterr().out
    assert said == f"job 7, attempt 1  rdma: required\n  the gang was refused: {why}\n"
    print_fabric(FabricView(7, 1, "required", None))
    assert "there is no plan yet" in capsys.readouterr().out

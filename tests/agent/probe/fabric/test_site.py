"""Site settings: NCCL variables, and UCX of several versions."""

from __future__ import annotations

import pytest

from agent.config import FabricSettings as FabricConfig
from agent.probe.fabric.probe import ProbeOptions, probe
from muster.fabric.operator_rules import Rules
from tests.agent.probe.fabric.trees import Node, classical, problems_of, words

PACKAGES = "opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("usr/lib64/pkgconfig/ucx.pc", "prefix=/usr\nName: ucx\nVersion: 1.4.0\n", "1.4.0"),
        ("opt/hpcx/ucx/lib/pkgconfig/ucx.pc", "Version: 1.18\n", "1.18"),
        (
            "opt/venv/lib/python3.12/site-packages/libucx_cu12-1.18.1.dist-info/METADATA",
            "",
            "1.18.1",
        ),
        ("usr/lib64/pkgconfig/ucx.pc", "Version: new\n", None),
    ],
)
def test_the_ucx_of_jobs(node: Node, file: str, text: str, version: str | None) -> None:
    node.file(file, text)
    node.hca("mlx5_0")
    node.port("mlx5_0", gids=classical("10.0.0.5", "eth0"))
    found = node.probe(python="/opt/venv/bin/python")
    assert found.software.ucx == version
    assert found.env.get("UCX_IB_GID_INDEX") == ("3" if version == "1.4.0" else None)


def test_settings_of_the_site(node: Node) -> None:
    node.file("proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
    for number in range(2):
        node.gpu(f"pci0000:00/0000:00:01.{number}/0000:{5 + number:02x}:00.0", numa=-1)
        path = f"pci0000:00/0000:00:02.{number}/0000:{13 + number:02x}:00.0"
        node.hca(f"mlx5_{number}", path=path, numa=-1)
        node.port(f"mlx5_{number}", link="InfiniBand")
    assert "fabric.settings" in words(problems_of(node.probe()))
    asked = ProbeOptions(settings={"NCCL_TOPO_FILE": "/opt/topo.xml", "NCCL_IB_TC": "41"})
    found = probe(node.root, asked)
    assert not problems_of(found)
    assert (found.env["NCCL_TOPO_FILE"], found.env["NCCL_IB_TC"]) == ("/opt/topo.xml", "41")
    # Without a usable HCA, no variable is set.
    bare = probe(
        node.root, ProbeOptions(rules=Rules(exclude=("mlx5_0", "mlx5_1")), settings=asked.settings)
    )
    assert "NCCL_IB_TC" not in bare.env


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"NCCL_IB_TIMEOUT": "22"}, "fabric.settings.NCCL_IB_TIMEOUT is not a setting here"),
        ({"NCCL_IB_TC": ""}, "is not a valid environment value"),
        ({"NCCL_TOPO_FILE": "/a\nb"}, "is not a valid environment value"),
    ],
)
def test_settings_that_are_not_for_a_site(settings: dict[str, str | int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FabricConfig(settings=settings)
    assert FabricConfig(settings={"NCCL_IB_TC": 41}).variables == {"NCCL_IB_TC": "41"}

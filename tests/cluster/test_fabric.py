"""Gangs whose nodes have fabrics: real daemons, whose agents read made-up trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.outcome import CauseCode
from tests.agent.probe.fabric.trees import Node
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import submit, until, wait

PRINT = "env | grep -E '^(NCCL|UCX|GLOO)_' | sort > env.$MUSTER_NODE_RANK"
SLOTS = ("1a", "3c", "4d")


def port(node: Node, number: int, name: str, **values: str) -> None:
    bus = int(SLOTS[number], 16)
    path = f"pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:01.0/0000:{bus:02x}:00.0"
    node.hca(name, path=path, hca_type="MT4129")
    node.port(name, **{"link": "InfiniBand", "lid": f"0x{number + 1:x}", "sm_lid": "0x1", **values})  # type: ignore[arg-type]


@dataclass
class Fabrics(LocalCluster):
    """Four nodes: two equal except for names, one whose third port is slower, one without RDMA."""

    def _place(self, number: int) -> dict[str, object]:
        root = self.root / "fabric" / str(number)
        node = Node(root)
        (root / "sys").mkdir(parents=True)
        names = ("mlx5_0", "mlx5_1", "mlx5_2") if number != 2 else ("mlx5_7", "mlx5_3", "mlx5_10")
        for at, name in enumerate(names if number < 4 else ()):
            slow = {"rate": "200 Gb/sec (4X HDR)"} if (number, at) == (3, 2) else {}
            port(node, at, name, **slow)
        return {**super()._place(number), "fabric": {"root": str(root)}}


@pytest.fixture(scope="module")
def fabrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = Fabrics(tmp_path_factory.mktemp("fabrics"), agents=4, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def gang(cluster: LocalCluster, folder: Path, *names: str, **more: object) -> str:
    """A gang on these nodes, that prints the environment of its network."""
    return submit(
        cluster,
        folder,
        nodes=len(names),
        placement={"include": list(names)},
        retry={"infra": 0},
        run=PRINT,
        **more,
    )


def env_of(folder: Path, rank: int) -> dict[str, str]:
    """Without what is about NCCL's lines, which are for the proof."""
    lines = (folder / f"env.{rank}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("NCCL_DEBUG"))


def sockets(cluster: LocalCluster, job: str) -> dict[str, str]:
    (first, *_) = cluster.client().fabric(int(job)).plan.nodes  # type: ignore[union-attr]
    assert first.interface is not None
    return {"GLOO_SOCKET_IFNAME": first.interface, "NCCL_SOCKET_IFNAME": f"={first.interface}"}


def test_a_gang_that_agrees_gets_the_ports_of_its_rails(
    fabrics: LocalCluster, tmp_path: Path
) -> None:
    job = gang(fabrics, tmp_path, "node-1", "node-2", rdma="required")
    assert wait(fabrics, job) == 0, fabrics.muster("show", job).stdout
    first, second = "mlx5_0:1,mlx5_1:1,mlx5_2:1", "mlx5_3:1,mlx5_7:1,mlx5_10:1"
    for task in fabrics.client().job(int(job)).attempts[0].tasks:
        ports = first if task.node == "node-1" else second
        assert env_of(tmp_path, task.node_rank) == {
            "NCCL_IB_HCA": f"={ports}",
            "NCCL_NET": "IB",
            "NCCL_NET_PLUGIN": "none",
            "UCX_NET_DEVICES": ports,
            **sockets(fabrics, job),
        }
    shown = fabrics.muster("show", job, "--fabric").stdout
    assert "RDMA over 3 rails of InfiniBand MT4129, 400 Gb/s each" in shown
    for text in ("mlx5_10:1", "0000:4d:00.0", f"NCCL_IB_HCA=={first}", "rdma: required"):
        assert text in shown
    assert fabrics.muster("explain", "rdma", job).stdout == shown
    assert "fabric RDMA over 3 rails" in fabrics.muster("show", job).stdout
    assert "RDMA over 3 rails" in fabrics.muster("explain", job).stdout


def test_a_gang_that_differs_does_not_start(fabrics: LocalCluster, tmp_path: Path) -> None:
    job = gang(fabrics, tmp_path, "node-1", "node-2", "node-3", rdma="required")
    assert wait(fabrics, job) == 122
    cause = fabrics.client().job(int(job)).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.PREPARE_REFUSED, "node-3")
    assert cause.text == (
        "rdma: required, but node-3: mlx5_2:1 runs at 200 Gb/s (rail 2), those of 2 others run at "
        "400 Gb/s"
    )
    assert not list(tmp_path.glob("env.*"))


def test_a_job_that_prefers_rdma_uses_the_rails_that_all_nodes_share(
    fabrics: LocalCluster, tmp_path: Path
) -> None:
    job = gang(fabrics, tmp_path, "node-1", "node-2", "node-3", env={"UCX_NET_DEVICES": "all"})
    assert wait(fabrics, job) == 0, fabrics.muster("show", job).stdout
    ranks = {task.node: task.node_rank for task in fabrics.client().job(int(job)).attempts[0].tasks}
    found = env_of(tmp_path, ranks["node-2"])
    assert found["NCCL_IB_HCA"] == "=mlx5_3:1,mlx5_7:1"
    assert found["UCX_NET_DEVICES"] == "all"
    assert "NCCL_NET" not in found
    view = fabrics.client().fabric(int(job))
    assert view.plan is not None
    node = next(it for it in view.plan.nodes if it.node == "node-2")
    mine = next(it for it in node.settings if it.name == "UCX_NET_DEVICES")
    assert (mine.value, mine.planned) == ("all", "mlx5_3:1,mlx5_7:1")


@pytest.mark.parametrize(
    ("rdma", "why"), [("preferred", "node-4 has no RDMA"), ("off", "rdma: off")]
)
def test_tcp_that_is_said(fabrics: LocalCluster, tmp_path: Path, rdma: str, why: str) -> None:
    job = gang(fabrics, tmp_path, "node-1", "node-4", rdma=rdma)
    assert wait(fabrics, job) == 0, fabrics.muster("show", job).stdout
    interface = sockets(fabrics, job)
    for rank in range(2):
        assert env_of(tmp_path, rank) == {
            "NCCL_IB_DISABLE": "1",
            "UCX_NET_DEVICES": interface["GLOO_SOCKET_IFNAME"],
            **interface,
        }
    assert why in fabrics.muster("show", job).stdout


def test_a_port_that_goes_down_between_two_launches(fabrics: LocalCluster, tmp_path: Path) -> None:
    state = fabrics.root / "fabric/1/sys/class/infiniband/mlx5_1/ports/1/state"
    state.write_text("1: DOWN\n")
    try:
        job = gang(fabrics, tmp_path, "node-1", "node-2", rdma="required")
        assert wait(fabrics, job) == 122
        cause = fabrics.client().job(int(job)).attempts[0].cause
        assert cause is not None
        assert cause.text.startswith(
            "rdma: required, but node-1: mlx5_1:1 cannot be used: port DOWN"
        )
    finally:
        state.write_text("4: ACTIVE\n")


def agree(cluster: LocalCluster) -> bool:
    """True if the coordinator knows the real fabric of the first two nodes."""
    nodes = {node.name: node.rdma for node in cluster.client().nodes().nodes}
    one, other = nodes["node-1"], nodes["node-2"]
    return one is not None and other is not None and one.ports == 3 and one.kind == other.kind


def test_nodes_that_agree_are_chosen_and_none_is_tried_in_vain(
    fabrics: LocalCluster, tmp_path: Path
) -> None:
    until(lambda: agree(fabrics), "the agents have looked again")
    job = submit(fabrics, tmp_path, nodes=2, rdma="required", retry={"infra": 0}, run="true")
    assert wait(fabrics, job) == 0, fabrics.muster("show", job).stdout
    (attempt,) = fabrics.client().job(int(job)).attempts
    assert {task.node for task in attempt.tasks} == {"node-1", "node-2"}
    assert "one kind of RDMA" in fabrics.muster("explain", job).stdout
    assert "3 of 3 ports of InfiniBand MT4129" in fabrics.muster("node", "show", "node-1").stdout


def test_rdma_that_too_few_nodes_have_is_refused_at_submit(
    fabrics: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    wanted = {"name": "far", "nodes": 4, "rdma": "required", "launcher": "none", "run": "true"}
    file.write_text(json.dumps(wanted))
    refused = fabrics.muster("submit", "-f", str(file), check=False)
    assert refused.returncode != 0
    error = " ".join(refused.stderr.split())
    assert "3 of the 4 known can run it" in error
    assert "node-4 has no RDMA device that jobs can use (rdma: required)" in error
    assert "none: it has no RDMA device" in fabrics.muster("node", "show", "node-4").stdout

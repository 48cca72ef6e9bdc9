"""Carrier of a gang's traffic: real daemons, a real gloo gang, scripted counters and lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.http.views import AttemptView
from muster.protocol.observations.traffic import Carrier
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, log_of, logs, submit, until, wait
from tests.cluster.scripted_fabric import ScriptedCluster
from tests.fabric import nccl_lines as lines

GB = 10**9
# Acts like NCCL until the test has seen enough.
SAYS = """
import os, socket, time
with open(f"pid.{os.environ['MUSTER_NODE_RANK']}", "w") as mine:
    mine.write(f"{os.getpid()}\\n")
file = os.environ.get("NCCL_DEBUG_FILE")
if file:
    path = file.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
    with open(path, "w") as out:
        out.write(open(f"says.{os.environ['MUSTER_NODE_RANK']}").read())
"""
WAITS = """
while not os.path.exists("enough"):
    time.sleep(0.05)
"""
# And one all-reduce after the other.
GLOO = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
more = torch.ones(1)
while more.item():
    more[0] = float(not os.path.exists("enough"))
    dist.all_reduce(more, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
dist.destroy_process_group()
print("rank", os.environ["RANK"], "is done")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedCluster]:
    """Two nodes with two InfiniBand ports each."""
    made = ScriptedCluster(tmp_path_factory.mktemp("cluster"), agents=2, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def gang(
    cluster: ScriptedCluster, tmp_path: Path, *says: str, work: str = WAITS, **job: object
) -> str:
    (tmp_path / "gang.py").write_text(SAYS + work)
    for rank, text in enumerate(says):
        (tmp_path / f"says.{rank}").write_text(text)
    launcher = "torchrun" if work == GLOO else "processes"
    return submit(cluster, tmp_path, launcher=launcher, nodes=2, run="gang.py", **job)


def attempt(cluster: ScriptedCluster, job: str) -> AttemptView:
    return cluster.client().job(int(job)).attempts[-1]


def verdict(cluster: ScriptedCluster, job: str) -> Carrier | None:
    proof = attempt(cluster, job).proof
    return None if proof is None else proof.verdict


def started(cluster: ScriptedCluster, job: str) -> None:
    until(lambda: attempt(cluster, job).started_at is not None, "the gang runs")


@pytest.mark.torch
def test_rdma_is_proved_and_stays_so_over_kills_of_the_daemons(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    job = gang(cluster, tmp_path, lines.IB_2_18, lines.IB_2_27, work=GLOO)
    started(cluster, job)
    until(lambda: "no HCA of" in proof_text(cluster, job), "NCCL's lines without traffic")
    assert verdict(cluster, job) is Carrier.UNKNOWN
    for node in cluster.fabric.values():
        for hca in ("mlx5_0", "mlx5_1"):
            node.carry(hca, 40 * GB, 40 * GB)
        node.carry_by_tcp(GB // 10, GB // 10)
    until(lambda: verdict(cluster, job) is Carrier.PROVED, "the verdict")
    assert proof_text(cluster, job).startswith("RDMA proved: ")
    cluster.nodes["node-1"].kill()
    cluster.fabric[1].carry("mlx5_0", 10 * GB, 10 * GB)
    cluster.nodes["node-1"].start()
    cluster.coordinator.kill()
    cluster.coordinator.start()
    cluster.wait_for_nodes()
    (tmp_path / "enough").touch()
    assert wait(cluster, job) == 0
    assert verdict(cluster, job) is Carrier.PROVED
    cluster.coordinator.kill()
    cluster.coordinator.start()
    cluster.wait_for_nodes()
    proof = cluster.client().fabric(int(job)).proof
    assert proof is not None
    first, second = proof.nodes
    assert [port.sent for port in first.ports] == [50 * GB, 40 * GB]
    assert [port.sent for port in second.ports] == [40 * GB, 40 * GB]
    assert [port.planned for port in first.ports] == [True, True]
    shown = cluster.muster("show", "--fabric", job).stdout
    assert "RDMA proved: 2/2 HCAs, " in shown
    assert "IB; 4 channels over RDMA, 4 of them GPUDirect; NCCL 2.18.6" in shown


@pytest.mark.torch
def test_counters_of_a_gang_that_ends_while_the_coordinator_is_away_arrive_after_it(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    job = gang(cluster, tmp_path, lines.IB_2_18, lines.IB_2_27, work=GLOO)
    started(cluster, job)
    until(lambda: "no HCA of" in proof_text(cluster, job), "NCCL's lines without traffic")
    pids = [int(await_file(tmp_path / f"pid.{rank}")) for rank in range(2)]
    cluster.coordinator.kill()
    for node in cluster.fabric.values():
        for hca in ("mlx5_0", "mlx5_1"):
            node.carry(hca, 40 * GB, 40 * GB)
    (tmp_path / "enough").touch()
    until(lambda: not any(alive(pid) for pid in pids), "the ranks have ended")
    cluster.coordinator.start()
    assert wait(cluster, job) == 0
    proof = cluster.client().fabric(int(job)).proof
    assert proof is not None
    assert [[port.sent for port in node.ports] for node in proof.nodes] == [[40 * GB] * 2] * 2
    assert verdict(cluster, job) is Carrier.PROVED
    for rank in range(2):
        assert f"rank {rank} is done" in log_of(cluster, job, "--rank", str(rank))


def proof_text(cluster: ScriptedCluster, job: str) -> str:
    proof = attempt(cluster, job).proof
    return "" if proof is None else proof.text


@pytest.mark.torch
def test_tcp_ends_a_job_that_requires_rdma(cluster: ScriptedCluster, tmp_path: Path) -> None:
    job = gang(
        cluster, tmp_path, lines.SOCKET_2_24, lines.SOCKET_2_24, work=GLOO, rdma="required", retry=3
    )
    assert wait(cluster, job) == 122
    view = cluster.client().job(int(job))
    assert view.reason.code == "rdma_not_used"
    assert "NCCL used NET/Socket on all 2 nodes (NET/IB found no device" in view.reason.text
    # It would be the same on other nodes.
    assert len(view.attempts) == 1
    assert verdict(cluster, job) is Carrier.TCP


def test_tcp_ends_no_job_that_only_prefers_rdma(cluster: ScriptedCluster, tmp_path: Path) -> None:
    job = gang(cluster, tmp_path, lines.SOCKET_2_18, lines.SOCKET_2_18)
    until(lambda: verdict(cluster, job) is Carrier.TCP, "the verdict")
    (tmp_path / "enough").touch()
    assert wait(cluster, job) == 0
    shown = cluster.muster("show", job).stdout
    assert "TCP: NCCL used NET/Socket on all 2 nodes (NET/IB found no device)" in shown


def test_lines_are_kept_with_the_logs_and_not_in_the_output(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    (tmp_path / "enough").touch()
    job = gang(cluster, tmp_path, lines.IB_2_18, lines.IB_2_18)
    assert wait(cluster, job) == 0
    printed = logs(cluster, "--tail", "all", "--rank", "all", job)
    assert "NCCL INFO" not in printed.stdout + printed.stderr
    kept = logs(cluster, "--nccl", "--node", "node-2", "--no-prefix", job)
    assert kept.stdout == lines.IB_2_18


def test_a_job_that_asks_nccl_for_lines_gets_them(cluster: ScriptedCluster, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    job = gang(
        cluster, tmp_path, lines.IB_2_18, lines.IB_2_18, rdma="required", env={"NCCL_DEBUG": "WARN"}
    )
    assert wait(cluster, job) == 0
    assert verdict(cluster, job) is Carrier.UNKNOWN
    assert "the job's own NCCL_DEBUG" in proof_text(cluster, job)

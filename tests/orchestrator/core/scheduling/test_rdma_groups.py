"""Nodes are chosen by what they have for RDMA, before a gang of them is tried."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import NodeName
from muster.protocol.observations.fabric import NodeRdma
from muster.spec.model import Rdma
from orchestrator.core.facts.effects import Declined, Submitted
from orchestrator.core.scheduling.placement import never_fits
from orchestrator.core.scheduling.scheduler import why_waiting
from tests.orchestrator.core.playbook import Cluster, spec

FAST = NodeRdma("InfiniBand MT4129", 8, 8, "fast")
SLOW = NodeRdma("InfiniBand MT4123", 8, 8, "slow")
SHORT = NodeRdma("InfiniBand MT4129", 6, 8, "short")
DARK = NodeRdma("InfiniBand MT4129", 0, 8, "", "has no port that can be used: mlx5_0:1: port DOWN")
NONE = NodeRdma(why="has no RDMA device that jobs can use")


def cluster_of(**nodes: NodeRdma | None) -> Cluster:
    cluster = Cluster()
    for name, rdma in nodes.items():
        cluster.join(name, rdma=rdma, gpus=8)
    return cluster


def placed(cluster: Cluster, job: int = 1) -> list[str]:
    attempts = cluster.job(job).attempts
    return [task.node for task in attempts[-1].tasks] if attempts else []


def gang(nodes: int = 2, rdma: Rdma = Rdma.REQUIRED, **more: Any) -> Any:
    return spec(nodes=nodes, rdma=rdma, **more)


@pytest.mark.parametrize("rdma", [Rdma.REQUIRED, Rdma.PREFERRED])
def test_a_gang_is_made_of_nodes_of_one_kind(rdma: Rdma) -> None:
    cluster = cluster_of(a=FAST, b=SLOW, c=FAST, d=SLOW)
    cluster.submit(gang(rdma=rdma))
    assert placed(cluster) == ["a", "c"]
    assert "one kind of RDMA" in cluster.job(1).attempts[0].placement_reason
    cluster.submit(gang(rdma=rdma))
    assert placed(cluster, 2) == ["b", "d"]


def test_the_kind_of_rdma_does_not_matter_if_it_is_off() -> None:
    cluster = cluster_of(a=FAST, b=SLOW, c=FAST)
    cluster.submit(gang(rdma=Rdma.OFF))
    assert placed(cluster) == ["a", "b"]


def test_a_gang_that_would_be_refused_is_not_tried() -> None:
    cluster = cluster_of(a=FAST, b=SLOW, c=FAST)
    cluster.submit(spec(placement={"include": ["c"]}))
    cluster.submit(gang())
    assert placed(cluster, 2) == []
    reason = why_waiting(cluster.state, cluster.job(2))
    assert reason == "needs 2 nodes with RDMA of one kind, and not enough of these are free"
    cluster.cancel(1, force=True)
    cluster.clean(cluster.job(1).attempts[0].tasks[0].id, stopped_by="kill")
    assert placed(cluster, 2) == ["a", "c"]


def test_nodes_of_one_kind_on_other_switches_are_nothing_to_wait_for() -> None:
    """Nodes of one switch can only be tried: the plan names the difference."""
    cluster = Cluster()
    for name, rdma, leaf in (("a", FAST, 1), ("b", SLOW, 1), ("c", FAST, 2), ("d", SLOW, 2)):
        cluster.join(name, rdma=rdma, gpus=8, labels={"switch": f"leaf{leaf}"})
    cluster.submit(gang(placement={"spread": "same-switch"}))
    assert placed(cluster) == ["a", "b"]


def test_a_job_that_prefers_rdma_does_not_wait() -> None:
    cluster = cluster_of(a=FAST, b=SLOW, c=FAST)
    cluster.submit(spec(placement={"include": ["c"]}))
    cluster.submit(gang(rdma=Rdma.PREFERRED))
    assert placed(cluster, 2) == ["a", "b"]


def test_the_plan_decides_if_no_kind_has_enough_nodes() -> None:
    # A node with fewer rails may be a smaller one, which the plan takes.
    cluster = cluster_of(a=FAST, b=SHORT)
    cluster.submit(gang())
    assert placed(cluster) == ["a", "b"]


def test_a_node_that_is_gone_is_no_reason_to_wait() -> None:
    cluster = cluster_of(a=FAST, b=SHORT, c=FAST)
    cluster.leave("c")
    cluster.beat(1000)
    cluster.submit(gang())
    assert placed(cluster) == ["a", "b"]


def test_required_where_nobody_has_it_is_refused_at_once_with_the_reason() -> None:
    cluster = cluster_of(a=NONE, b=NONE)
    answer = cluster.submit(gang())
    assert isinstance(answer, Declined)
    assert answer.code == "unsatisfiable"
    assert (
        "it needs 2 nodes and 0 of the 2 known can run it: a has no RDMA device that jobs can use "
        "(rdma: required); b has no RDMA device that jobs can use (rdma: required)"
    ) in answer.text


@pytest.mark.parametrize(
    "wanted",
    [
        gang(rdma=Rdma.PREFERRED),
        # Nothing goes between the nodes of one.
        gang(nodes=1),
        # Another network than NCCL's own is not ours to know.
        gang(env={"NCCL_NET_PLUGIN": "ofi"}),
    ],
)
def test_a_job_with_its_own_plugin_is_accepted(wanted: Any) -> None:
    cluster = cluster_of(a=NONE, b=NONE)
    assert isinstance(cluster.submit(wanted), Submitted)


@pytest.mark.parametrize("rdma", [None, DARK])
def test_unknown_or_returning_hardware_refuses_no_job(rdma: NodeRdma | None) -> None:
    cluster = cluster_of(a=rdma, b=rdma)
    assert never_fits(cluster.state, gang()) is None


def test_a_node_that_says_that_its_ports_are_down_is_left_for_others() -> None:
    cluster = cluster_of(a=FAST, b=FAST, c=FAST)
    cluster.observe(NodeName("a"), rdma=DARK)
    assert cluster.state.nodes[NodeName("a")].inventory.rdma == DARK
    cluster.submit(gang())
    assert placed(cluster) == ["b", "c"]


def test_jobs_without_need_stay_off_the_nodes_that_have_more() -> None:
    cluster = cluster_of(b=FAST, c=FAST)
    for name in ("x", "y"):
        cluster.join(name, rdma=NONE, gpus=0)
    cluster.submit(spec(nodes=2))
    assert placed(cluster) == ["x", "y"]


def test_nodes_with_rdma_go_first_among_equals() -> None:
    cluster = cluster_of(a=NONE, b=NONE, c=FAST, d=FAST)
    cluster.submit(spec(nodes=2))
    assert placed(cluster) == ["c", "d"]

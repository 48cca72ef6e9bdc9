"""The fabric plan as people see it, and why each value is what it is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.http.fabric import FabricView, PlanView, VariableView
from muster.protocol.link.control_channel import Fingerprint
from muster.protocol.observations.fabric import NodeFabric, PortGids
from muster.spec.model import Rdma, Retry
from orchestrator.core.views.display import job_view
from orchestrator.core.views.explain import explain
from orchestrator.core.views.fabric import fabric_view
from tests.orchestrator.core.fabrics import full, node, roce, without
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

TWO = full("n", 2).fabric
NONE = NodeFabric()


def gang(*fabrics: NodeFabric, nccl: str = "2.27.3", **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{at}" for at in range(len(fabrics))))
    cluster.submit(spec(nodes=len(fabrics), **more))
    for rank, fabric in enumerate(fabrics):
        cluster.prepare(task(1, 1, rank), fabric=fabric, fingerprint=Fingerprint(nccl=nccl))
    return cluster


def seen(cluster: Cluster) -> FabricView:
    return fabric_view(cluster.job(1))


def plan_of(cluster: Cluster) -> PlanView:
    found = seen(cluster).plan
    assert found is not None
    return found


def setting(cluster: Cluster, name: str, rank: int = 0) -> VariableView:
    return next(it for it in plan_of(cluster).nodes[rank].settings if it.name == name)


def test_before_all_are_ready_there_is_no_plan() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1))
    assert (seen(cluster).attempt, seen(cluster).plan) == (1, None)
    cluster.leave("n0")
    cluster.submit(spec(nodes=1))
    assert fabric_view(cluster.job(2)).attempt is None


def test_rails_ports_and_settings() -> None:
    ports = [replace(port, numa_node=1, near=(at,)) for at, port in enumerate(TWO.ports)]
    fabric = replace(TWO, ports=tuple(ports), versions={"OFED": "24.10"}, gpudirect="dmabuf")
    cluster = gang(fabric, fabric, rdma=Rdma.REQUIRED)
    plan = plan_of(cluster)
    assert (plan.transport, plan.notes) == ("rdma", ())
    assert [(rail.rail, rail.link_layer, rail.rate_gbps, rail.sm_lid) for rail in plan.rails] == [
        (0, "InfiniBand", 400.0, 1),
        (1, "InfiniBand", 400.0, 1),
    ]
    mine = plan.nodes[1]
    assert [(port.rail, port.hca, port.numa_node, port.gpus) for port in mine.ports] == [
        (0, "mlx5_0:1", 1, (0,)),
        (1, "mlx5_1:1", 1, (1,)),
    ]
    assert (mine.nccl, mine.gpudirect, mine.versions) == ("2.27", "dmabuf", {"OFED": "24.10"})
    assert setting(cluster, "NCCL_IB_HCA").value == "=mlx5_0:1,mlx5_1:1"
    assert "rdma: required" in setting(cluster, "NCCL_NET").why
    shown = job_view(cluster.state, cluster.job(1), cluster.now).attempts[0]
    assert shown.fabric == plan.text
    (story,) = explain(cluster.state, cluster.job(1), cluster.now).attempts
    assert story.fabric == plan.text


def test_the_user_s_value_and_the_plan_s() -> None:
    env = {"NCCL_IB_HCA": "mlx5", "NCCL_IB_TIMEOUT": "22", "HOME": "/x"}
    cluster = gang(TWO, TWO, env=env)
    mine = setting(cluster, "NCCL_IB_HCA")
    assert (mine.value, mine.planned) == ("mlx5", "=mlx5_0:1,mlx5_1:1")
    assert setting(cluster, "NCCL_IB_TIMEOUT").why == "set in the job's own env"
    assert "HOME" not in [it.name for it in plan_of(cluster).nodes[0].settings]


@pytest.mark.parametrize(
    ("nccl", "sparse", "why"),
    [
        ("2.18.1", False, "NCCL 2.18 uses entry 0 by default"),
        ("2.22.3", True, "NCCL 2.22 fails with tables with holes, as on this node"),
    ],
)
def test_why_the_gid_index_is_set(nccl: str, why: str, *, sparse: bool) -> None:
    ports = tuple(roce(at, 5, sparse=sparse) for at in range(2))
    cluster = gang(NodeFabric(ports=ports), NodeFabric(ports=ports), nccl=nccl)
    mine = setting(cluster, "NCCL_IB_GID_INDEX")
    assert (mine.value, mine.why) == ("5", why)
    assert [port.gid_index for port in plan_of(cluster).nodes[0].ports] == [5, 5]


def test_why_the_gid_index_is_set_where_nccl_finds_one_by_itself() -> None:
    other = tuple(roce(at, fourth=PortGids(5, (5,), ranged=True)) for at in range(2))
    cluster = gang(NodeFabric(ports=other), NodeFabric(ports=other))
    mine = setting(cluster, "NCCL_IB_GID_INDEX")
    assert (mine.value, mine.why) == ("5", "NCCL's own choice is another address")


def test_a_file_s_setting_is_overridden_with_a_reason() -> None:
    conf = {
        "NCCL_IB_GID_INDEX": "1 (from /etc/nccl.conf)",
        "NCCL_IB_ADDR_FAMILY": "AF_INET6 (from /etc/nccl.conf)",
    }
    fabric = NodeFabric(ports=tuple(roce(at, 5) for at in range(2)), nccl_conf=conf)
    cluster = gang(fabric, fabric)
    for name, value in (("NCCL_IB_GID_INDEX", "-1"), ("NCCL_IB_ADDR_FAMILY", "AF_INET")):
        mine = setting(cluster, name)
        assert (mine.value, mine.why) == (value, "a file of NCCL on the node overrides it")
    assert [port.gid_index for port in plan_of(cluster).nodes[0].ports] == [5, 5]


def test_why_the_addresses_are_of_ipv6() -> None:
    ports = tuple(roce(at, fourth=None, sixth=PortGids(1, (1,))) for at in range(2))
    cluster = gang(NodeFabric(ports=ports), NodeFabric(ports=ports))
    assert setting(cluster, "NCCL_IB_ADDR_FAMILY").why.startswith("not all ports have an IPv4")


def test_why_there_is_no_rdma() -> None:
    cluster = gang(TWO, NONE)
    assert plan_of(cluster).text == "TCP: n1 has no RDMA device that jobs can use"
    assert "n1 has no RDMA device" in setting(cluster, "NCCL_IB_DISABLE").why
    assert setting(gang(TWO, TWO, rdma=Rdma.OFF), "NCCL_IB_DISABLE").why == "rdma: off"
    nothing = plan_of(gang(NONE, NONE))
    assert (nothing.transport, nothing.rails) == ("open", ())
    assert nothing.text == "TCP: no node has an RDMA device that jobs can use"


def test_missing_ports_are_reported() -> None:
    (mine, _) = plan_of(gang(without("n", 3).fabric, full("n").fabric)).nodes
    assert mine.missing == ("mlx5_3:1: port DOWN, Polling",)


def test_every_setting_has_its_reason() -> None:
    for fabric in (TWO, node("n", *(roce(at) for at in range(2))).fabric, NONE):
        for rdma in Rdma:
            found = seen(gang(fabric, fabric, rdma=rdma, nccl="2.18.1")).plan
            for mine in () if found is None else found.nodes:
                assert all(it.why and it.why != "from the plan" for it in mine.settings)


def test_a_gang_that_was_refused_says_so_and_nothing_of_traffic() -> None:
    cluster = gang(TWO, NONE, rdma=Rdma.REQUIRED, retry=Retry(infra=0))
    for rank in range(2):
        cluster.clean(task(1, 1, rank), prepared=prepared(), stopped_by="kill")
    view = seen(cluster)
    assert (view.plan, view.proof) == (None, None)
    assert view.refused == "rdma: required, but n1 has no RDMA device that jobs can use"
    shown = job_view(cluster.state, cluster.job(1), cluster.now).attempts[0]
    assert shown.proof is None
    (story,) = explain(cluster.state, cluster.job(1), cluster.now).attempts
    assert story.fabric == "no plan: the gang was refused"
    assert seen(gang(TWO, TWO)).refused is None

"""The fabric plan on its way: refused and moved to other nodes, sent to each node, kept."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.protocol.link.control_channel import ArrangeTask, Fingerprint, StopTask
from muster.protocol.observations.fabric import FabricGpu, NodeFabric
from muster.protocol.outcome import CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Rdma, Retry, Role, Roles
from orchestrator.core.facts.jobs import AttemptArranged
from orchestrator.core.gangs.fabric import near_ports
from orchestrator.core.gangs.launch import environments
from orchestrator.core.model.fabric_plan import FabricTransport
from tests.orchestrator.core.fabrics import changed, full, node, without
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

IB = "mlx5_0:1,mlx5_1:1"
TWO = full("n", 2).fabric
SLOW = changed("n", 1, count=2, rate_gbps=200.0).fabric
NONE = NodeFabric()


def gang(*fabrics: NodeFabric | None, known: int = 0, **more: Any) -> Cluster:
    """A job on as many nodes as there are fabrics, of `known`."""
    cluster = Cluster()
    cluster.join(*(f"n{at}" for at in range(max(known, len(fabrics)))))
    cluster.submit(spec(nodes=len(fabrics), **more))
    prepare(cluster, *fabrics)
    return cluster


def prepare(cluster: Cluster, *fabrics: NodeFabric | None, attempt: int = 1) -> None:
    for rank, fabric in enumerate(fabrics):
        cluster.prepare(
            task(1, attempt, rank), fabric=fabric, fingerprint=Fingerprint(nccl="2.27.3")
        )


def plan_of(cluster: Cluster, name: str) -> ArrangeTask:
    (found,) = cluster.commands(name, ArrangeTask)
    assert isinstance(found, ArrangeTask)
    return found


def test_each_node_gets_its_part_of_the_plan() -> None:
    cluster = gang(TWO, TWO, rdma=Rdma.REQUIRED, nccl_debug=True)
    said = plan_of(cluster, "n1")
    assert said.fabric is not None
    assert said.fabric.rdma is Rdma.REQUIRED
    assert said.fabric.hcas == ("mlx5_0:1", "mlx5_1:1")
    assert said.fabric.netdevs[:2] == ("ib0", "ib1")
    assert said.fabric.nccl_debug
    wanted = {
        "NCCL_IB_HCA": f"={IB}",
        "UCX_NET_DEVICES": IB,
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_DEBUG": "INFO",
    }
    assert said.env.items() >= wanted.items()
    left_alone = ("NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL", "NCCL_ALGO")
    assert not said.env.keys() & set(left_alone)


def test_variables_of_the_user_win() -> None:
    env = {"NCCL_IB_HCA": "=mlx5_1:1"}
    roles = Roles(launcher=Role(env={"NCCL_NET_PLUGIN": "aws-ofi"}))
    cluster = gang(TWO, TWO, rdma=Rdma.REQUIRED, env=env, roles=roles)
    assert plan_of(cluster, "n1").env["NCCL_IB_HCA"] == "=mlx5_1:1"
    assert plan_of(cluster, "n1").env["NCCL_NET"] == "IB"
    assert plan_of(cluster, "n0").env["NCCL_NET_PLUGIN"] == "aws-ofi"
    assert "NCCL_NET" not in plan_of(cluster, "n0").env


@pytest.mark.parametrize("rdma", [Rdma.OFF, Rdma.PREFERRED])
def test_tcp_on_purpose(rdma: Rdma) -> None:
    cluster = gang(TWO, TWO if rdma is Rdma.OFF else NONE, rdma=rdma)
    said = plan_of(cluster, "n0")
    assert said.env["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in said.env
    assert said.fabric is not None
    assert (said.fabric.rdma, said.fabric.hcas) == (rdma, ())


@pytest.mark.parametrize("fabric", [None, NONE])
def test_rdma_is_not_mentioned_if_no_node_has_it(fabric: NodeFabric | None) -> None:
    cluster = gang(fabric, fabric)
    said = plan_of(cluster, "n0")
    assert not [name for name in said.env if name.startswith(("NCCL_IB", "NCCL_NET", "UCX"))]
    assert cluster.job(1).attempts[0].fabric is None


def test_an_agent_that_does_not_report_is_no_reason_to_guess() -> None:
    cluster = gang(TWO, None)
    plan = cluster.job(1).attempts[0].fabric
    assert plan is not None
    assert plan.text == "TCP: n1 does not know its RDMA equipment: its agent does not report it"


def test_a_gang_that_differs_is_refused_and_gets_other_nodes() -> None:
    cluster = gang(TWO, SLOW, TWO, known=4, rdma=Rdma.REQUIRED)
    attempt = cluster.job(1).attempts[0]
    cause = attempt.cause
    assert cause is not None
    assert (cause.code, cause.outcome) == (CauseCode.PREPARE_REFUSED, Outcome.INFRA)
    assert (cause.node, cause.refusal, cause.node_fault) == ("n1", RefusalCode.FABRIC_DIFFERS, True)
    assert cause.text == (
        "rdma: required, but n1: mlx5_1:1 runs at 200 Gb/s (rail 1), those of 2 others run at "
        "400 Gb/s"
    )
    refusals = [it.refusal.code if it.refusal else None for it in attempt.tasks]
    assert refusals == [None, RefusalCode.FABRIC_DIFFERS, None]
    for rank in range(3):
        assert not cluster.commands(f"n{rank}", ArrangeTask)
        assert cluster.commands(f"n{rank}", StopTask)
        cluster.clean(task(1, 1, rank), prepared=prepared(), stopped_by="kill")
    cluster.pass_time(2)
    second = cluster.job(1).attempts[1]
    assert [it.node for it in second.tasks] == ["n0", "n2", "n3"]
    prepare(cluster, TWO, TWO, TWO, attempt=2)
    assert second.fabric is not None
    assert second.fabric.transport is FabricTransport.RDMA


def test_all_that_are_to_blame_are_left_out_at_once() -> None:
    cluster = gang(TWO, NONE, NONE, TWO, known=8, rdma=Rdma.REQUIRED)
    for rank in range(4):
        cluster.clean(task(1, 1, rank), prepared=prepared(), stopped_by="kill")
    cluster.pass_time(2)
    names = {it.node for it in cluster.job(1).attempts[1].tasks}
    assert not names & {"n1", "n2"}


def test_with_no_other_nodes_the_job_ends_with_122() -> None:
    cluster = gang(TWO, NONE, rdma=Rdma.REQUIRED, retry=Retry(infra=0))
    for rank in range(2):
        cluster.clean(task(1, 1, rank), prepared=prepared(), stopped_by="kill")
    assert cluster.shown(1) is JobState.FAILED
    cause = cluster.job(1).cause
    assert cause is not None
    assert cause.exit_code == 122
    assert cause.text == "rdma: required, but n1 has no RDMA device that jobs can use"


def test_the_plan_outlives_the_coordinator() -> None:
    cluster = gang(TWO, without("n", 1).fabric)
    (fact,) = [it for it in cluster.facts if isinstance(it, AttemptArranged)]
    assert fact.fabric == cluster.job(1).attempts[0].fabric
    old, new = cluster.job(1), cluster.replayed().jobs[cluster.job(1).id]
    assert list(environments(new, new.attempts[0])) == list(environments(old, old.attempts[0]))


def test_a_single_node_needs_no_rdma() -> None:
    assert plan_of(gang(NONE, rdma=Rdma.REQUIRED), "n0").env.get("NCCL_IB_DISABLE") is None
    assert plan_of(gang(node("n").fabric), "n0").fabric is not None


def test_part_of_a_node_uses_the_ports_near_its_gpus() -> None:
    gpus = tuple(
        FabricGpu(f"0000:0{at}:00.0", f"GPU-{at}", tuple(2 if at == it else 404 for it in range(4)))
        for at in range(4)
    )
    fabric = full("n", 4).fabric
    fabric = replace(fabric, gpus=gpus)
    assert [port.key for port in near_ports(fabric, ("GPU-1", "GPU-3"))] == ["mlx5_1:1", "mlx5_3:1"]
    for whole in ((), ("GPU-9",), tuple(gpu.uuid for gpu in gpus)):
        assert near_ports(fabric, whole) == fabric.ports
    assert near_ports(NodeFabric(gpus=gpus), ("GPU-1",)) == ()


@pytest.mark.parametrize(("fabric", "fits"), [(TWO, True), (SLOW, False), (NONE, False)])
def test_a_joining_node_must_fit_the_gang_s_plan(fabric: NodeFabric, *, fits: bool) -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, max_nodes=3, rendezvous="c10d"))
    prepare(cluster, TWO, TWO)
    for state in (TaskState.ARRANGED, TaskState.STARTED):
        for rank in range(2):
            cluster.report(task(1, 1, rank), state, prepared=prepared(), listening=rank == 0)
    cluster.join("n2")
    cluster.prepare(task(1, 1, 2), fabric=fabric, fingerprint=Fingerprint(nccl="2.27.3"))
    third = cluster.job(1).attempts[0].tasks[2]
    if fits:
        assert plan_of(cluster, "n2").env["NCCL_IB_HCA"] == f"={IB}"
        return
    assert third.left is not None
    assert third.refusal is not None
    assert third.refusal.code == RefusalCode.FABRIC_DIFFERS
    assert not cluster.commands("n2", ArrangeTask)
    assert cluster.shown(1) is JobState.RUNNING


def test_a_plugin_of_the_job_s_own_starts_on_devices_that_are_for_plugins() -> None:
    efa = NodeFabric(unfit=("rdmap0s6:1: EFA needs the aws-ofi-nccl plugin",))
    cluster = gang(efa, efa, rdma=Rdma.REQUIRED, env={"NCCL_NET_PLUGIN": "ofi"})
    plan = cluster.job(1).attempts[0].fabric
    assert plan is not None
    assert plan.text == "left to the plugin NCCL_NET_PLUGIN=ofi"
    assert not plan_of(cluster, "n0").env.keys() & {"NCCL_NET", "NCCL_IB_DISABLE"}
    refused = gang(efa, efa, rdma=Rdma.REQUIRED, env={"NCCL_NET_PLUGIN": "none"})
    assert refused.job(1).attempts[0].cause is not None


def test_a_file_for_nccl_that_the_job_names_is_said() -> None:
    cluster = gang(TWO, TWO, env={"NCCL_CONF_FILE": "/data/nccl.conf"})
    plan = cluster.job(1).attempts[0].fabric
    assert plan is not None
    assert plan.notes == ("the job's NCCL_CONF_FILE=/data/nccl.conf may differ",)


def test_sockets_of_the_job_s_own_are_said() -> None:
    cluster = gang(TWO, TWO, env={"NCCL_NET": "Socket"})
    plan = cluster.job(1).attempts[0].fabric
    assert plan is not None
    assert plan.text == "TCP: the job's own NCCL_NET=Socket turns RDMA off"

"""`preflight: quick`: a node on which something is wrong is refused before the start, and another
taken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.link.control_channel import ArrangeTask, PrepareTask
from muster.protocol.observations.fabric import MissingPort, NodeFabric
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.traffic import PortHealth
from muster.protocol.outcome import Outcome
from muster.protocol.states import JobState
from orchestrator.core.engine.invariants import check
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec, task

DOWN = (PortHealth("mlx5_3:1", down=True, state="DOWN, Polling"),)


def heartbeat(cluster: Cluster, name: str, **more: Any) -> None:
    cluster.observe(name, **more)


def placed(**more: Any) -> Cluster:
    """A gang of two on a and b; c is to spare."""
    cluster = Cluster()
    cluster.join("a", "b", "c")
    cluster.submit(spec(nodes=2, **{"preflight": "quick", **more}))
    return cluster


def prepare_all(cluster: Cluster, attempt: int = 1) -> None:
    for it in list(cluster.job(1).attempt(attempt).tasks):
        cluster.prepare(it.id)


def nodes(cluster: Cluster, attempt: int) -> list[str]:
    return [it.node for it in cluster.job(1).attempt(attempt).tasks]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ports": DOWN}, "port mlx5_3:1 is down (DOWN, Polling)"),
        ({"wall_s": 1_700_000_000.0}, "the clock of b is"),
    ],
)
def test_a_failed_preflight_is_reported_and_another_node_is_chosen(
    more: dict[str, Any], said: str
) -> None:
    cluster = placed()
    heartbeat(cluster, "b", **more)
    prepare_all(cluster)
    first = cluster.job(1).attempts[0]
    assert first.cause is not None
    assert (first.cause.outcome, first.cause.node) == (Outcome.INFRA, "b")
    assert said in first.cause.text
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    cluster.pass_time(2)
    assert nodes(cluster, 2) == ["a", "c"]
    prepare_all(cluster, 2)
    assert cluster.job(1).attempts[1].cause is None
    assert check(cluster.state) == []
    found = explain(cluster.state, cluster.job(1), cluster.now)
    assert said in found.attempts[0].ended


def test_all_that_are_ill_are_left_out_at_once() -> None:
    cluster = placed()
    cluster.join("d")
    for name in ("a", "b"):
        heartbeat(cluster, name, ports=DOWN)
    prepare_all(cluster)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    cluster.pass_time(2)
    assert nodes(cluster, 2) == ["c", "d"]


def test_a_node_that_joins_a_running_gang_is_checked_too() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec(nodes=1, max_nodes=2, rendezvous="c10d", preflight="quick"))
    cluster.run_gang(1)
    cluster.join("b")
    heartbeat(cluster, "b", ports=DOWN)
    cluster.prepare(task(1, 1, 1))
    left = cluster.job(1).attempts[0].tasks[1].left
    assert left is not None
    assert left.startswith("b refused: port mlx5_3:1 is down (DOWN, Polling)")
    assert not cluster.commands("b", ArrangeTask)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.clean(task(1, 1, 1))
    assert len(cluster.job(1).attempts[0].tasks) == 2, "it is not asked again"
    assert check(cluster.state) == []


def test_a_gpu_with_a_fault_is_one_too_few_for_a_whole_node() -> None:
    cluster = Cluster()
    well = GpuDevice("0000:01:00.0", "GPU-1", "H100")
    ill = GpuDevice("0000:02:00.0", "GPU-2", "H100", fault="Xid 79")
    cluster.join("a", gpus=2, devices=(well, ill))
    cluster.submit(spec(preflight="quick", retry={"infra": 0}))
    cluster.prepare(task(1, 1, 0))
    cluster.clean(task(1, 1, 0))
    assert cluster.shown(1) is JobState.FAILED
    assert "1 of 2 GPUs can be used: GPU 0000:02:00.0: Xid 79" in cluster.cause(1).text


def test_a_port_that_the_probe_misses_counts_but_not_for_who_wants_no_rdma() -> None:
    missing = NodeFabric(missing=(MissingPort("mlx5_1:1", "0000:1a:00.0", "its state is DOWN"),))
    for rdma, refused in (("preferred", True), ("off", False)):
        cluster = placed(rdma=rdma)
        for it in list(cluster.job(1).attempts[0].tasks):
            cluster.prepare(it.id, fabric=missing)
        cause = cluster.job(1).attempts[0].cause
        assert (cause is not None) is refused
        assert cause is None or "port mlx5_1:1 cannot be used: its state is DOWN" in cause.text


def test_nobody_looks_who_was_not_asked_to() -> None:
    cluster = placed(preflight=None)
    heartbeat(cluster, "b", ports=DOWN)
    prepare_all(cluster)
    assert cluster.job(1).attempts[0].cause is None
    orders = [it for it in cluster.sent["a"] if isinstance(it, PrepareTask)]  # type: ignore[index]
    assert [it.preflight for it in orders] == [False]
    assert b"preflight" not in msgspec.json.encode(orders[0])

"""Carrier of a gang's traffic: received, judged, kept, and the end of jobs that require RDMA."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from muster.fabric.nccl_log import NcclLog
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.control_channel import ArrangeTask, Heartbeat
from muster.protocol.observations.fabric import FabricPort, NodeFabric
from muster.protocol.observations.traffic import (
    Carrier,
    FabricReport,
    NcclEvidence,
    PortFigures,
    PortHealth,
)
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Rdma
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.monitoring.traffic import VERDICTS_MAX
from orchestrator.core.views.display import job_view, node_view
from orchestrator.core.views.fabric import fabric_view
from tests.fabric import nccl_lines as lines
from tests.orchestrator.core.playbook import Cluster, prepared, spec

GB = 10**9
FABRIC = NodeFabric(
    group="InfiniBand MT4129",
    ports=(FabricPort("mlx5_0", 1, "0000:01:00.0", "InfiniBand", "MT4129", 400.0, sm_lid=1),),
)


def said(text: str) -> NcclEvidence:
    log = NcclLog()
    log.feed(text.encode())
    return log.evidence()


def report(text: str = "", carried: int = 0) -> FabricReport:
    figures = PortFigures("mlx5_0:1", planned=True, sent=carried, received=carried)
    nccl = said(text) if text else NcclEvidence()
    return FabricReport(120.0, 60, ports=(figures,), peak=41e9, nccl=nccl)


def started(cluster: Cluster, nodes: int = 2, **more: Any) -> list[TaskId]:
    cluster.join(*(f"n{n}" for n in range(nodes)))
    cluster.submit(spec(nodes=nodes, **more))
    tasks = [t.id for t in cluster.job(1).attempts[-1].tasks]
    return run(cluster, tasks)


def run(cluster: Cluster, tasks: list[TaskId]) -> list[TaskId]:
    for task in tasks:
        cluster.prepare(task, fabric=FABRIC, nccl="/t/nccl")
    for state in (TaskState.ARRANGED, TaskState.STARTED):
        for task in tasks:
            cluster.report(task, state, prepared=prepared(), listening=True)
    return tasks


def tell(cluster: Cluster, task: TaskId, found: FabricReport) -> None:
    cluster.report(task, TaskState.STARTED, prepared=prepared(), listening=True, traffic=found)


def proof(cluster: Cluster) -> tuple[Carrier, str] | None:
    shown = job_view(cluster.state, cluster.job(1), cluster.now).attempts[-1].proof
    return None if shown is None else (shown.verdict, shown.text)


def test_nccl_is_asked_for_its_lines_in_a_file_of_its_own() -> None:
    cluster = Cluster()
    started(cluster)
    (arranged, *_) = cluster.commands("n1", ArrangeTask)
    assert isinstance(arranged, ArrangeTask)
    env = {k: v for k, v in arranged.env.items() if k.startswith("NCCL_DEBUG")}
    assert env == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
        "NCCL_DEBUG_FILE": "/t/nccl/%h.%p",
    }
    assert arranged.fabric is not None
    assert arranged.fabric.hcas == ("mlx5_0:1",)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"env": {"NCCL_DEBUG": "WARN"}}, {"NCCL_DEBUG": "WARN"}),
        ({"env": {"NCCL_DEBUG_FILE": "/mine"}}, {"NCCL_DEBUG_FILE": "/mine"}),
        ({"nccl_debug": True}, {"NCCL_DEBUG_SUBSYS": "ALL"}),
    ],
)
def test_a_job_with_its_own_nccl_debug_keeps_it(
    more: dict[str, Any], wanted: dict[str, str]
) -> None:
    cluster = Cluster()
    started(cluster, **more)
    (arranged, *_) = cluster.commands("n1", ArrangeTask)
    assert isinstance(arranged, ArrangeTask)
    env = {k: v for k, v in arranged.env.items() if k.startswith("NCCL_DEBUG")}
    assert wanted.items() <= env.items()
    if "env" in more:
        assert env == wanted


def test_the_verdict_is_a_fact_and_a_line_of_the_timeline_and_no_sample_is() -> None:
    cluster = Cluster()
    first, second = started(cluster)
    tell(cluster, first, report(lines.IB_2_18))
    assert proof(cluster) == (
        Carrier.UNKNOWN,
        "unknown, because NCCL has logged no network on n1",
    )
    for task in (first, second):
        tell(cluster, task, report(lines.IB_2_18, 100 * GB))
    tell(cluster, first, report(lines.IB_2_18, 200 * GB))
    assert proof(cluster) == (Carrier.PROVED, "RDMA proved: 1/1 HCAs, 41 GB/s peak, TCP 0.0 %")
    kept = [x for x in cluster.facts if x.durability is not Durability.EPHEMERAL]
    judged = [x for x in kept if isinstance(x, f.TrafficJudged)]
    assert [x.proof.carrier for x in judged] == [Carrier.PROVED]
    assert not any(isinstance(x, TaskObserved) for x in kept)
    timeline = job_view(cluster.state, cluster.job(1), cluster.now).timeline
    assert any(step.text.startswith("RDMA proved") for step in timeline)


def test_verdicts_that_change_without_end_fill_no_journal() -> None:
    cluster = Cluster()
    first, second = started(cluster)
    tell(cluster, second, report(lines.IB_2_18, 100 * GB))
    for number in range(400):
        found = report(lines.IB_2_18, 100 * GB)
        nccl = structs.replace(found.nccl, sockets=number % 2)
        tell(cluster, first, structs.replace(found, nccl=nccl))
    judged = [x for x in cluster.facts if isinstance(x, f.TrafficJudged)]
    assert len(judged) == VERDICTS_MAX


def test_the_verdict_at_the_end_survives_a_restart() -> None:
    cluster = Cluster()
    tasks = started(cluster)
    for task in tasks:
        tell(cluster, task, report(lines.IB_2_18, 100 * GB))
    for task in tasks:
        cluster.report(
            task,
            TaskState.EXITED,
            prepared=prepared(),
            exit=ExitStatus(0),
            traffic=report(lines.IB_2_18, 300 * GB),
        )
    for task in tasks:
        cluster.clean(task, exit=ExitStatus(0))
    assert cluster.shown(1) is JobState.SUCCEEDED
    found = fabric_view(cluster.replayed().jobs[cluster.job(1).id]).proof
    assert found is not None
    assert found.verdict is Carrier.PROVED
    assert [node.ports[0].sent for node in found.nodes] == [300 * GB] * 2


def test_a_lost_report_takes_no_verdict_back() -> None:
    cluster = Cluster()
    first, second = started(cluster)
    for task in (first, second):
        tell(cluster, task, report(lines.IB_2_18, GB))
    tell(cluster, second, report())
    assert proof(cluster) is not None
    assert proof(cluster)[0] is Carrier.PROVED  # type: ignore[index]


def test_all_nodes_on_sockets_end_it_at_once_for_good() -> None:
    cluster = Cluster()
    first, second = started(cluster, rdma=Rdma.REQUIRED)
    tell(cluster, first, report(lines.SOCKET_2_18))
    assert cluster.shown(1) is JobState.RUNNING
    tell(cluster, second, report(lines.SOCKET_2_18))
    assert cluster.shown(1) is JobState.STOPPING
    for task in (first, second):
        cluster.clean(task, exit=ExitStatus(signal=15), stopped_by="stop")
    cause = cluster.cause(1)
    assert (cause.code, cause.exit_code) == (CauseCode.RDMA_NOT_USED, 122)
    assert cause.text == (
        "the job requires RDMA, but its traffic uses TCP: NCCL used NET/Socket on all 2 "
        "nodes (NET/IB found no device)"
    )
    assert len(cluster.job(1).attempts) == 1


def test_a_single_node_on_sockets_is_blamed_and_left_out() -> None:
    cluster = Cluster()
    cluster.join("n9")
    first, second = started(cluster, rdma=Rdma.REQUIRED)
    names = [t.node for t in cluster.job(1).attempts[0].tasks]
    tell(cluster, second, report(lines.SOCKET_2_18))
    tell(cluster, first, report(lines.IB_2_18))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.node, cause.node_fault) == (names[1], True)
    for task in (first, second):
        cluster.clean(task, exit=ExitStatus(signal=15), stopped_by="stop")
    assert cluster.shown(1) is JobState.RETRYING
    cluster.pass_time(60.0)
    assert names[1] not in [t.node for t in cluster.job(1).attempts[-1].tasks]


def test_nodes_that_say_nothing_are_waited_for_and_not_for_ever() -> None:
    cluster = Cluster()
    first, _ = started(cluster, rdma=Rdma.REQUIRED)
    tell(cluster, first, report(lines.SOCKET_2_18))
    cluster.beat(cluster.limits.traffic_wait_s - 1.0)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2.0)
    assert cluster.shown(1) is JobState.STOPPING


def test_a_coordinator_that_is_new_does_not_forget_it() -> None:
    cluster = Cluster()
    first, _ = started(cluster, rdma=Rdma.REQUIRED)
    tell(cluster, first, report(lines.SOCKET_2_18))
    later = Cluster(state=cluster.state, mono=cluster.mono)
    later.pass_time(later.limits.traffic_wait_s)
    assert later.shown(1) is JobState.STOPPING


@pytest.mark.parametrize("found", [report(), report(lines.IB_2_18), report(lines.INSIDE)])
def test_unknown_ends_nothing(found: FabricReport) -> None:
    cluster = Cluster()
    for task in started(cluster, rdma=Rdma.REQUIRED):
        tell(cluster, task, found)
    cluster.beat(60.0)
    assert cluster.shown(1) is JobState.RUNNING


@pytest.mark.parametrize("rdma", [Rdma.PREFERRED, Rdma.OFF])
def test_a_job_that_does_not_require_rdma_goes_on(rdma: Rdma) -> None:
    cluster = Cluster()
    for task in started(cluster, rdma=rdma):
        tell(cluster, task, report(lines.SOCKET_2_18))
    cluster.beat(60.0)
    assert cluster.shown(1) is JobState.RUNNING
    found = proof(cluster)
    assert found is not None
    assert found[0] is Carrier.TCP
    assert found[1].endswith("(as set in the job: rdma: off)") is (rdma is Rdma.OFF)


def test_a_rank_that_failed_first_is_the_cause() -> None:
    cluster = Cluster()
    first, second = started(cluster, rdma=Rdma.REQUIRED)
    tell(cluster, first, report(lines.SOCKET_2_18))
    cluster.end(second, ExitStatus(3))
    tell(cluster, first, report(lines.SOCKET_2_18, GB))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.RANK_FAILED


def test_a_gang_of_one_is_not_watched() -> None:
    cluster = Cluster()
    started(cluster, nodes=1)
    (arranged, *_) = cluster.commands("n0", ArrangeTask)
    assert isinstance(arranged, ArrangeTask)
    assert "NCCL_DEBUG" not in arranged.env
    assert proof(cluster) is None


def test_nodes_without_devices_are_shown_as_not_monitored() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    tasks = [t.id for t in cluster.job(1).attempts[-1].tasks]
    for task in tasks:
        cluster.report(task, TaskState.PREPARED, prepared=structs.replace(prepared(), gpus=0))
    for task in tasks:
        cluster.report(task, TaskState.STARTED, prepared=prepared(), listening=True)
    assert proof(cluster) is None
    found = fabric_view(cluster.job(1)).proof
    assert found is not None
    assert found.text.startswith("not monitored, because no node has an RDMA device or a GPU")


def test_a_port_that_went_down_is_a_warning_of_its_node() -> None:
    cluster = Cluster()
    cluster.join("n1")
    node = cluster.state.nodes[NodeName("n1")]
    assert node.session is not None
    ports = (PortHealth("mlx5_3:1", down=True, state="DOWN, Polling", flaps=1),)
    cluster.observe(node.name, ports=ports)
    view = node_view(node, cluster.now)
    assert any("port mlx5_3:1 is down (DOWN, Polling)" in text for text in view.warnings)
    cluster.turn(s.ReportReceived(node.session, Heartbeat(cluster.mono)))
    assert node.ports == ports
    cluster.observe(node.name, ports=())
    assert node_view(node, cluster.now).warnings == ()


def test_nccl_is_asked_for_its_lines_where_a_device_is_for_a_plugin() -> None:
    fabric = NodeFabric(unfit=("rdmap0s6:1: EFA needs the aws-ofi-nccl plugin",))
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    ready = structs.replace(prepared(), gpus=0, fabric=fabric, nccl="/t/nccl")
    for task in [t.id for t in cluster.job(1).attempts[-1].tasks]:
        cluster.report(task, TaskState.PREPARED, prepared=ready)
    (arranged,) = cluster.commands("n1", ArrangeTask)
    assert isinstance(arranged, ArrangeTask)
    assert arranged.env["NCCL_DEBUG"] == "INFO"

"""Nodes that are at fault for one job after another."""

from __future__ import annotations

import pytest

from muster.protocol.link.control_channel import RankReport
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Rdma, Retry
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.base import Durability
from orchestrator.core.model.blame import guilty_nodes
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.node import AdminState
from orchestrator.core.nodes.service_state import FAULTS_KEPT
from orchestrator.core.views.display import node_view
from tests.orchestrator.core.fabrics import full
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

TWO = Limits(quarantine=Quarantine(jobs=2, forgiven_after=3, pool_share=0.25))


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(limits=TWO)
    cluster.join("a", "b", "c", "d")
    return cluster


def fail_at(cluster: Cluster, node: str) -> int:
    """A job for which `node` says that it is not sound; returns its number."""
    cluster.submit(spec(placement={"include": [node]}, retry=Retry(infra=0)))
    number = max(cluster.state.jobs)
    running = task(number, 1, 0)
    cluster.refuse(running, "disk_broken", node_fault=True)
    cluster.clean(running)
    cluster.beat(2)
    return number


def test_a_node_at_fault_in_several_jobs_is_drained_with_their_numbers(cluster: Cluster) -> None:
    fail_at(cluster, "a")
    assert cluster.node("a").in_service
    fail_at(cluster, "a")
    view = node_view(cluster.node("a"), cluster.now)
    assert cluster.node("a").admin is AdminState.DRAINED
    assert view.drain is not None
    assert view.drain.quarantine
    assert view.drain.jobs == (1, 2)
    assert view.drain.user == "muster"
    # Everybody reads the reason, so it does not quote the failures. Those are with the faults.
    assert view.drain.reason == "quarantined: at fault in 2 jobs (1, 2)"
    assert view.faults[-1].text == "a refused: disk_broken here"
    assert [fault.job for fault in view.faults] == [1, 2]


def test_resume_clears_the_record(cluster: Cluster) -> None:
    fail_at(cluster, "a")
    fail_at(cluster, "a")
    cluster.resume("a")
    assert cluster.node("a").faults == ()
    fail_at(cluster, "a")
    assert cluster.node("a").in_service


def test_a_job_counts_once_however_often_it_fails(cluster: Cluster) -> None:
    cluster.submit(spec(placement={"include": ["a"]}, retry=Retry(infra=5)))
    for number in (1, 2, 3):
        cluster.refuse(task(1, number, 0), "disk_broken", node_fault=True)
        cluster.clean(task(1, number, 0))
        cluster.beat(100)
    assert len(cluster.node("a").faults) == 1


def test_failures_of_the_user_s_program_do_not_count(cluster: Cluster) -> None:
    for number in range(1, 6):
        cluster.submit(spec(placement={"include": ["a"]}))
        (running,) = cluster.run_gang(number)
        cluster.finish(running, 1)
        assert cluster.shown(number) is JobState.FAILED
    assert cluster.node("a").faults == ()


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
FULL = "OSError: [Errno 28] No space left on device"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("error", "disk_full", "kernel", "faults"),
    [
        pytest.param(ECC, False, "", 0, id="a text about a GPU"),
        pytest.param(FULL, False, "", 0, id="a text about a disk"),
        pytest.param(ECC, True, "", 0, id="a full disk and a text about a GPU"),
        pytest.param(FULL, True, "", 0, id="the disk of the node is full, which a job can do"),
        pytest.param(ECC, False, XID, 1, id="the kernel says it"),
    ],
)
def test_output_of_a_program_is_no_evidence_against_a_node(
    cluster: Cluster, error: str, disk_full: bool, kernel: str, faults: int
) -> None:
    cluster.submit(spec(placement={"include": ["a"]}, retry=Retry(infra=0)))
    (running,) = cluster.run_gang(1)
    how = ExitStatus(1)
    rank = RankReport(0, exit=how, error=error, disk_full=disk_full, kernel=kernel)
    cluster.report(running, TaskState.EXITED, prepared=prepared(), exit=how, ranks=(rank,))
    cluster.clean(running, prepared=prepared(), exit=how, ranks=(rank,))
    cluster.beat(2)
    assert cluster.cause(1).exit_code == 122
    assert len(cluster.node("a").faults) == faults


@pytest.mark.parametrize(
    ("code", "node_fault"),
    [
        ("setup_failed", False),
        ("bootstrap_failed", False),
        ("no_space", True),
        ("no_ports", True),
        ("user_refused", False),
    ],
)
def test_a_refusal_that_a_job_can_cause_is_no_nodes_fault(
    cluster: Cluster, code: str, node_fault: bool
) -> None:
    """A set-up sees the rank of its node, and a job can fill the disk of its neighbours."""
    cluster.submit(spec(nodes=2, retry=Retry(infra=0)))
    launcher, worker = (one.id for one in cluster.job(1).attempts[0].tasks)
    cluster.prepare(worker)
    cluster.refuse(launcher, code, node_fault=node_fault)
    cluster.beat(2)
    for one in (launcher, worker):
        cluster.clean(one)
    cluster.beat(2)
    assert cluster.cause(1).refusal == code
    assert all(not node.faults for node in cluster.state.nodes.values())


def test_a_path_that_is_wrong_everywhere_is_no_nodes_fault(cluster: Cluster) -> None:
    """The first node that is asked refuses before the second one does."""
    for number in range(1, 4):
        cluster.submit(spec())
        for attempt in (1, 2):
            cluster.refuse(task(number, attempt, 0), "no_folder")
            cluster.beat(2)
            cluster.clean(task(number, attempt, 0))
            cluster.beat(2)
        assert cluster.cause(number).exit_code == 123
    assert all(not node.faults for node in cluster.state.nodes.values())


def test_a_node_that_refuses_a_job_that_another_can_run_is_at_fault(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.submit(spec())
        assert cluster.job(number).attempts[0].tasks[0].node == "a"
        cluster.refuse(task(number, 1, 0), "no_python")
        cluster.beat(2)
        cluster.clean(task(number, 1, 0))
        cluster.beat(2)
        assert len(cluster.node("a").faults) == number - 1
        (running,) = cluster.run_gang(number, 2)
        assert len(cluster.node("a").faults) == number
        cluster.finish(running)
    assert cluster.node("a").admin is AdminState.DRAINED


def test_faults_are_forgotten_when_enough_has_ended_well_since(cluster: Cluster) -> None:
    fail_at(cluster, "a")
    for number in range(2, 5):
        cluster.submit(spec(placement={"include": ["a"]}))
        (running,) = cluster.run_gang(number)
        cluster.finish(running)
    assert cluster.node("a").faults == ()
    fail_at(cluster, "a")
    assert cluster.node("a").in_service


def test_never_more_than_a_share_of_the_pool(cluster: Cluster) -> None:
    for name in ("a", "a", "b", "b"):
        fail_at(cluster, name)
    assert not cluster.node("a").in_service
    view = node_view(cluster.node("b"), cluster.now)
    assert view.admin == "active"
    (warning,) = view.warnings
    assert warning == (
        "at fault in 2 jobs (3, 4); it was not quarantined, "
        "as 1 of the 4 nodes of pool default were, and at most 25% may be"
    )
    # A node that a user drained does not count towards the limit.
    cluster.resume("a")
    cluster.drain("c")
    fail_at(cluster, "b")
    assert not cluster.node("b").in_service


def test_two_that_are_lost_at_once_are_not_both_quarantined() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=1, pool_share=0.5)))
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2))
    cluster.run_gang(1)
    for name in ("a", "b"):
        cluster.leave(name)
    cluster.pass_time(1000)
    out = [name for name in ("a", "b") if not cluster.node(name).in_service]
    assert len(out) == 1
    assert all(cluster.node(name).faults for name in ("a", "b"))


def test_a_node_spared_before_counts_among_two_at_fault() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=1, pool_share=0.25)))
    cluster.join("a", "b", "c", "d")
    for name in ("c", "a"):
        fail_at(cluster, name)
    assert cluster.node("a").spared
    cluster.resume("c")
    cluster.submit(spec(nodes=2, placement={"include": ["a", "b"]}))
    cluster.run_gang(max(cluster.state.jobs))
    for name in ("a", "b"):
        cluster.leave(name)
    cluster.beat(1000)
    assert sum(not node.in_service for node in cluster.state.nodes.values()) == 1


def test_a_gang_that_is_made_ready_on_two_nodes_leaves_them_once() -> None:
    half = Quarantine(jobs=1, pool_share=0.5)
    cluster = Cluster(limits=Limits(quarantine=half))
    for name in ("a", "b", "c", "d"):
        cards = tuple(GpuDevice(f"0{i}", f"GPU-{name}{i}", "H100") for i in range(2))
        cluster.join(name, machine_id=name, gpus=2, devices=cards)
    for _ in range(2):
        cluster.submit(spec(nodes=2, resources={"gpu": 1}, placement={"include": ["a", "b"]}))
    first, second = (cluster.job(number).attempts[0].tasks for number in (1, 2))
    for one in first:
        cluster.refuse(one.id, "disk_broken", node_fault=True)
    for one in first:
        cluster.clean(one.id)
    assert not any(cluster.node(name).in_service for name in ("a", "b"))
    cause = cluster.job(2).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.DRAINED
    assert {one.node for one in second} == {"a", "b"}


def test_a_lost_node_is_at_fault_and_its_drain_is_not() -> None:
    cluster = Cluster(limits=TWO)
    cluster.join("a", "b", "c", "d")
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.drain("a", deadline_s=0.0)
    cluster.leave("a")
    cluster.beat(1000)
    assert cluster.node("a").faults == ()


def test_the_record_is_on_disk(cluster: Cluster) -> None:
    fail_at(cluster, "a")
    kept = [fact for fact in cluster.facts if isinstance(fact, sf.NodeFaultRecorded)]
    assert [fact.durability for fact in kept] == [Durability.SYNC]


def test_it_can_be_switched_off() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=0)))
    cluster.join("a", "b", "c", "d")
    for _ in range(4):
        fail_at(cluster, "a")
    assert cluster.node("a").in_service
    assert cluster.node("a").faults == ()


def test_a_time_limit_is_no_fault(cluster: Cluster) -> None:
    cluster.submit(spec(time_limit_s=10.0))
    (running,) = cluster.run_gang(1)
    cluster.reach_limit(running)
    cluster.end(running, ExitStatus(signal=15), "limit")
    cluster.clean(running)
    assert cluster.shown(1) is JobState.TIMEOUT
    assert cluster.node("a").faults == ()


def test_a_node_without_the_rdma_that_a_job_requires_is_sound() -> None:
    cluster = Cluster(limits=TWO)
    cluster.join("a", "b", "c", "d")
    has, has_not = full("n", 2).fabric, NodeFabric()
    for number in (1, 2, 3):
        retry = Retry(infra=0)
        cluster.submit(spec(nodes=4, rdma=Rdma.REQUIRED, retry=retry))
        for rank in range(4):
            cluster.prepare(task(number, 1, rank), fabric=has if rank > 1 else has_not)
        for rank in range(4):
            cluster.clean(task(number, 1, rank), prepared=prepared(), stopped_by="kill")
        cluster.beat(2)
        assert cluster.cause(number).exit_code == 122
        assert guilty_nodes(cluster.job(number).attempts[0], cluster.cause(number)) == {"a", "b"}
    assert all(node.faults == () and node.in_service for node in cluster.state.nodes.values())


def test_each_nodes_reason_names_that_node() -> None:
    cluster = Cluster(limits=TWO)
    cluster.join("a", "b", "c")
    cluster.submit(spec(nodes=3, retry=Retry(infra=0)))
    tasks = [it.id for it in cluster.job(1).attempts[0].tasks]
    cluster.prepare(tasks[2])
    cluster.refuse(tasks[1], "no_python")
    cluster.refuse(tasks[0], "no_folder")
    cluster.beat(2)
    for it in tasks:
        cluster.clean(it)
    cluster.beat(2)
    texts = {name: cluster.node(name).faults[0].text for name in ("a", "b")}
    assert texts == {"a": "a refused: no_folder here", "b": "b refused: no_python here"}


def test_the_last_of_many_faults_are_kept_and_all_are_counted() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(forgiven_after=2, pool_share=0)))
    cluster.join("a", "b")
    for _ in range(FAULTS_KEPT + 4):
        fail_at(cluster, "a")
    view = node_view(cluster.node("a"), cluster.now)
    assert [fault.job for fault in view.faults] == list(range(5, FAULTS_KEPT + 5))
    assert view.faults_before == 4
    (warning,) = view.warnings
    assert warning.startswith(f"at fault in {FAULTS_KEPT + 4} jobs (")
    for _ in range(2):
        cluster.submit(spec(placement={"include": ["a"]}))
        (running,) = cluster.run_gang(max(cluster.state.jobs))
        cluster.finish(running)
    view = node_view(cluster.node("a"), cluster.now)
    assert (view.faults, view.faults_before, view.warnings) == ((), 0, ())


def test_a_node_is_drained_for_more_faults_than_are_kept() -> None:
    many = FAULTS_KEPT + 2
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=many, pool_share=0.5)))
    cluster.join("a", "b")
    for _ in range(many - 1):
        fail_at(cluster, "a")
    assert cluster.node("a").in_service
    fail_at(cluster, "a")
    view = node_view(cluster.node("a"), cluster.now)
    assert view.drain is not None
    assert f"at fault in {many} jobs (" in view.drain.reason
    cluster.resume("a")
    assert node_view(cluster.node("a"), cluster.now).faults_before == 0

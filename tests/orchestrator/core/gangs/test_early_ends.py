"""Launchers that end well before their gang has begun: the job fails by its own program."""

from __future__ import annotations

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.outcome import CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.invariants import check
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.node import AdminState
from tests.orchestrator.core.playbook import Cluster, prepared, spec

GOOD = ExitStatus(code=0)


def cluster_of(nodes: int) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    for node in range(nodes):
        cluster.join(f"n{node}", address=f"10.0.0.{node + 1}", machine_id=f"m{node}")
    cluster.submit(spec(nodes=nodes))
    return cluster, [task.id for task in cluster.job(1).attempts[0].tasks]


def ends(cluster: Cluster, task: TaskId) -> None:
    cluster.report(task, TaskState.CLEANED, prepared=prepared(), exit=GOOD)


def failed(cluster: Cluster, tasks: list[TaskId], when: str) -> None:
    for task in tasks:
        cluster.clean(task)
    assert cluster.shown(1) is JobState.FAILED
    cause = cluster.cause(1)
    assert cause.code is CauseCode.LAUNCHER_FAILED
    assert cause.outcome is Outcome.USER
    assert not cause.node_fault
    assert f"the launcher on n0 exited with code 0 {when}" in cause.text
    assert "muster logs 1 --node n0" in cause.text
    assert cause.exit_code == 1
    assert all(node.faults == () for node in cluster.state.nodes.values())
    assert check(cluster.state) == []


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_launcher_that_ends_in_the_report_that_it_is_ready(nodes: int) -> None:
    cluster, (launcher, *workers) = cluster_of(nodes)
    ends(cluster, launcher)
    failed(cluster, workers, "before the gang was started")


def test_a_launcher_that_ends_before_the_others_are_ready() -> None:
    cluster, (launcher, *workers) = cluster_of(3)
    cluster.prepare(launcher)
    cluster.prepare(workers[0])
    ends(cluster, launcher)
    failed(cluster, workers, "before the gang was started")


def test_a_launcher_that_ends_before_the_others_have_the_plan() -> None:
    cluster, (launcher, *workers) = cluster_of(3)
    for task in (launcher, *workers):
        cluster.prepare(task)
    ends(cluster, launcher)
    failed(cluster, workers, "before the gang was started")


def test_a_launcher_that_ends_without_listening() -> None:
    cluster, (launcher, *workers) = cluster_of(3)
    for task in (launcher, *workers):
        cluster.prepare(task)
    for task in (launcher, *workers):
        cluster.report(task, TaskState.ARRANGED, prepared=prepared())
    assert cluster.job(1).attempts[0].phase is AttemptPhase.RUNNING
    ends(cluster, launcher)
    port = cluster.job(1).attempts[0].master_port
    failed(cluster, workers, f"without listening on port {port}, for which n1, n2 waited")


def test_launchers_that_end_early_take_no_node_out_of_service() -> None:
    cluster, _ = cluster_of(2)
    for number in range(1, 5):
        if number > 1:
            cluster.submit(spec(nodes=2))
        launcher, worker = (task.id for task in cluster.job(number).attempts[0].tasks)
        for task in (launcher, worker):
            cluster.prepare(task)
        for task in (launcher, worker):
            cluster.report(task, TaskState.ARRANGED, prepared=prepared())
        ends(cluster, launcher)
        cluster.beat(300.0)
        cluster.clean(worker)
        assert cluster.shown(number) is JobState.FAILED
    assert all(node.admin is AdminState.ACTIVE for node in cluster.state.nodes.values())
    assert all(node.faults == () for node in cluster.state.nodes.values())


def test_a_launcher_that_listened_and_ends_well_waits_for_the_others() -> None:
    cluster, _ = cluster_of(2)
    launcher, worker = cluster.run_gang(1)
    cluster.finish(launcher)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.finish(worker)
    assert cluster.shown(1) is JobState.SUCCEEDED

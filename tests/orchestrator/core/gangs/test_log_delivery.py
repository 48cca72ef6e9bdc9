"""Logs for which an ended job waits."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import JobId
from muster.protocol.link.control_channel import Refusal
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Retry, Shell
from orchestrator.core.gangs.log_delivery import tasks_with_pending_logs
from tests.orchestrator.core.playbook import Cluster, spec, task


def refused(code: str = "no_space", **more: Any) -> Cluster:
    """A gang of two of which one node was prepared, and the other one has refused."""
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, retry=Retry(infra=0), **more))
    cluster.prepare(task(1, 1, 0))
    refusal = Refusal(code, "it cannot", node_fault=True)
    cluster.report(task(1, 1, 1), TaskState.CLEANED, refusal=refusal)
    cluster.clean(task(1, 1, 0))
    return cluster


def nodes(cluster: Cluster, *stored: tuple[int, int]) -> list[str]:
    return [task.node for task in tasks_with_pending_logs(cluster.job(1), stored)]


def test_a_node_on_which_nothing_can_have_run_has_none() -> None:
    cluster = refused()
    assert nodes(cluster) == ["n0"]
    assert nodes(cluster, (1, 0)) == []


def test_a_setup_runs_before_its_node_is_prepared() -> None:
    assert nodes(refused("setup_failed", setup=Shell("make")), (1, 0)) == ["n1"]


def test_an_agent_that_could_make_no_shim_has_run_no_setup() -> None:
    assert nodes(refused("gpu_gone", setup=Shell("make")), (1, 0)) == []


def test_a_refusal_not_yet_acknowledged_may_have_a_log() -> None:
    later = refused("of_a_later_version", setup=Shell("make"))
    assert nodes(later, (1, 0)) == ["n1"]


def test_a_task_without_output_is_not_awaited_after_a_restart_either() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    for number, name in enumerate(cluster.run_gang(1)):
        cluster.end(name, ExitStatus(0))
        cluster.clean(name, no_output=number == 1)
    assert nodes(cluster) == ["n0"]
    kept = cluster.replayed().jobs[JobId(1)]
    assert [task.node for task in tasks_with_pending_logs(kept, ())] == ["n0"]

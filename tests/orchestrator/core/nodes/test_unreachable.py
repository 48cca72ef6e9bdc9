"""A node that cannot be reached while it runs a job: the timeline says so, and when it is back."""

from __future__ import annotations

from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import jobs as f
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec


def timeline(cluster: Cluster) -> list[str]:
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    return [step.text for step in view.timeline]


def running(nodes: int = 2) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes))
    cluster.run_gang(1)
    return cluster


def come_back(cluster: Cluster, name: str) -> None:
    (task,) = [t for t in cluster.job(1).attempts[-1].tasks if t.node == name]
    report = TaskReport(task.id, TaskState.STARTED, prepared=prepared(), listening=True)
    cluster.join(name, tasks=(report,))


def test_it_says_unreachable_and_back_after_how_long() -> None:
    cluster = running()
    cluster.leave("n1")
    cluster.pass_time(9)
    come_back(cluster, "n1")
    texts = timeline(cluster)
    assert texts[-2:] == ["n1 unreachable, presumed running", "n1 back after 9s"]
    assert cluster.shown(1) is JobState.RUNNING


def test_many_of_a_moment_are_one_line() -> None:
    cluster = running(7)
    for number in range(7):
        cluster.leave(f"n{number}")
    assert timeline(cluster)[-1] == "n0, n1, n2, n3 and 3 more unreachable, presumed running"
    cluster.pass_time(20)
    for number in range(7):
        come_back(cluster, f"n{number}")
    assert timeline(cluster)[-1] == "n0, n1, n2, n3 and 3 more back after 20s"


def test_a_node_that_never_comes_back_is_lost() -> None:
    cluster = running()
    cluster.leave("n1")
    cluster.beat(1000)
    facts = [fact for fact in cluster.facts if isinstance(fact, f.TaskReachable)]
    assert facts == []
    assert "n1 unreachable, presumed running" in timeline(cluster)
    assert check(cluster.state) == []


def test_a_node_that_lost_its_task_is_not_back() -> None:
    cluster = running()
    cluster.leave("n1")
    cluster.join("n1")
    assert not any(isinstance(fact, f.TaskReachable) for fact in cluster.facts)


def test_a_restart_of_the_coordinator_forgets_nothing_and_says_nothing() -> None:
    cluster = running()
    cluster.leave("n1")
    again = Cluster(state=cluster.replayed(), mono=cluster.mono + 5)
    for name in ("n0", "n1"):
        come_back(again, name)
    assert timeline(again)[-2:] == ["n1 unreachable, presumed running", "n1 back after 5s"]


def test_a_node_without_a_job_has_nothing_to_say() -> None:
    cluster = running()
    cluster.join("free")
    cluster.leave("free")
    assert not any(isinstance(fact, f.TaskUnreachable) for fact in cluster.facts)

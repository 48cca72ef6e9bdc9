"""A report of a task changes what is known of it by one fact, and by none if nothing is new."""

from __future__ import annotations

from muster.protocol.observations.hangs import Doing, RankActivity
from muster.protocol.observations.traffic import FabricReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Idle
from orchestrator.core.facts.jobs import Fact, TaskExited, TaskStarted
from orchestrator.core.facts.observations import TaskObserved
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

ONE = task(1, 1, 0)
MOVES = (RankActivity(0, learned=True, still_s=20.0, idle_s=20.0, doing=Doing.SLEEPS),)
SILENT = ("10.0.0.7",)


def placed() -> Cluster:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, idle=Idle(for_s=60.0)))
    return cluster


def said(cluster: Cluster, state: TaskState = TaskState.STARTED, **observed: object) -> list[Fact]:
    return cluster.report(ONE, state, prepared=prepared(), listening=True, **observed).facts


def test_everything_that_is_new_is_one_fact() -> None:
    cluster = placed()
    cluster.run_gang(1)
    traffic = FabricReport(seconds=3.0)
    found = said(cluster, traffic=traffic, silent=SILENT, activity=MOVES, idle_s=30.0)
    now = cluster.mono
    assert found == [TaskObserved(ONE, now, traffic, SILENT, MOVES, now - 30.0)]


def test_a_report_without_news_is_no_fact() -> None:
    cluster = placed()
    cluster.run_gang(1)
    said(cluster, traffic=FabricReport(seconds=3.0), silent=SILENT)
    assert said(cluster, traffic=FabricReport(seconds=3.0), silent=SILENT) == []
    assert said(cluster, silent=()) == [TaskObserved(ONE, cluster.mono, silent=())]


def test_activity_counts_after_the_start_that_the_same_report_tells() -> None:
    """After a restart of the coordinator a node may report both at once, and then nothing more."""
    cluster = placed()
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    for rank in (0, 1):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared(), listening=True)
    kinds = [type(fact) for fact in said(cluster, activity=MOVES, idle_s=30.0)]
    assert kinds.index(TaskStarted) < kinds.index(TaskObserved)


def test_traffic_after_the_exit_changes_nothing() -> None:
    """The exit record has the last figures, and it is on disk."""
    cluster = placed()
    cluster.run_gang(1)
    last, late = FabricReport(seconds=9.0), FabricReport(seconds=10.0)
    found = said(cluster, TaskState.EXITED, exit=ExitStatus(0), traffic=last)
    assert [fact.traffic for fact in found if isinstance(fact, TaskExited)] == [last]
    said(cluster, TaskState.EXITED, exit=ExitStatus(0), traffic=late)
    known = cluster.state.task(ONE)
    assert known is not None
    assert known.traffic == last

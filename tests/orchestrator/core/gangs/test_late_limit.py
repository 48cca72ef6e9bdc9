"""The coordinator ends attempts whose nodes ignore the time limit."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import StopTask, TaskReport
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import STRICT, Cluster, prepared, spec

LIMIT_S = 100.0
WAIT_S = LIMIT_S + 4 + 30


def limited(nodes: int = 2, **more: Any) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster(**more)
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes, time_limit_s=LIMIT_S))
    return cluster, cluster.run_gang(1, peer_port=7079)


def held(task: TaskId, running_s: float) -> TaskReport:
    """A report of a task that still runs."""
    return TaskReport(task, TaskState.STARTED, prepared=prepared(), terms=1, running_s=running_s)


def test_an_attempt_whose_nodes_ignore_its_limit_is_stopped_as_any_other() -> None:
    cluster, tasks = limited()
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.STOPPING
    for rank, task in enumerate(tasks):
        assert cluster.commands(f"n{rank}", StopTask) == [StopTask(task, "SIGTERM", 30.0)]
    for task in tasks:
        cluster.end(task, ExitStatus(signal=15), stopped_by="stop")
        cluster.clean(task)
    cause = cluster.cause(1)
    assert (cluster.shown(1), cause.code) == (JobState.TIMEOUT, CauseCode.TIME_LIMIT)
    assert cause.text == ("the time limit of 100 s is over, and n0, n1 did not end the ranks")


def test_a_later_limit_postpones_it_and_an_earlier_one_brings_it_forward() -> None:
    cluster, _ = limited()
    cluster.beat(50)
    cluster.change(1, time_limit_s=1000.0)
    cluster.beat(1000)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.change(1, time_limit_s=1051.0)
    cluster.beat(72)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(3)
    assert cluster.shown(1) is JobState.STOPPING


def test_a_limit_that_is_lifted_ends_nothing() -> None:
    cluster, _ = limited()
    cluster.change(1, time_limit_s=None)
    cluster.beat(10 * WAIT_S)
    assert cluster.shown(1) is JobState.RUNNING


def test_silent_nodes_are_not_judged() -> None:
    """They may have ended their ranks in time, and report it when they are back."""
    cluster, tasks = limited()
    cluster.leave("n0")
    cluster.leave("n1")
    cluster.beat(10 * WAIT_S)
    assert cluster.shown(1) is JobState.RUNNING
    done = TaskReport(tasks[0], TaskState.EXITED, prepared=prepared(), exit=ExitStatus(0), terms=1)
    cluster.join("n0", tasks=(done,))
    cluster.beat(WAIT_S)
    assert cluster.shown(1) is JobState.RUNNING


def test_a_node_that_is_back_has_a_short_while_to_end_its_ranks() -> None:
    for pools in ({}, STRICT):
        cluster, (task,) = limited(1, pools=pools)
        cluster.leave("n0")
        cluster.beat(10 * WAIT_S)
        cluster.join("n0", tasks=(held(task, 10 * WAIT_S),))
        cluster.beat(29)
        assert cluster.shown(1) is JobState.RUNNING
        cluster.beat(2)
        assert cluster.shown(1) is JobState.STOPPING


def test_a_new_coordinator_counts_from_what_the_nodes_report() -> None:
    cluster, tasks = limited(1)
    cluster.beat(60)
    after = Cluster(state=cluster.replayed())
    after.join("n0", tasks=(held(tasks[0], 60.0),))
    after.beat(WAIT_S - 61)
    assert after.shown(1) is JobState.RUNNING
    after.beat(2)
    assert after.shown(1) is JobState.STOPPING


def test_a_node_with_later_terms_than_a_restored_journal_is_not_judged() -> None:
    """The limit may have been raised after the backup."""
    cluster, tasks = limited(1)
    cluster.job(1).left_out_to = 1000
    later = TaskReport(tasks[0], TaskState.STARTED, prepared=prepared(), terms=2, running_s=1e4)
    cluster.join("n0", tasks=(later,))
    cluster.beat(WAIT_S)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.change(1, time_limit_s=20_000.0)
    assert cluster.terms(tasks[0]).number > 2
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.limit_pending == ("n0",)


def test_a_coordinator_that_was_suspended_reads_the_reports_first() -> None:
    cluster, tasks = limited(1)
    cluster.beat(90)
    cluster.mono += 3600.0
    for timer in sorted(cluster.timers, key=cluster.timers.__getitem__):
        if cluster.timers[timer] <= cluster.mono:
            del cluster.timers[timer]
            cluster.turn(s.TimerFired(timer))
    assert cluster.shown(1) is JobState.RUNNING
    assert a.TimerKind.LIMIT in {it.kind for it in cluster.timers}
    cluster.reach_limit(tasks[0])
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.text == "the time limit of 100 s is over"

"""The signal that warns of the time limit, and the grace of a stop."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import SignalTask, StopTask, TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from muster.spec.model import Stop, Warn
from orchestrator.core.facts import jobs as f
from orchestrator.core.views.display import job_summary
from tests.orchestrator.core.playbook import Cluster, prepared, spec

WARNED = Stop(signal="SIGUSR2", grace_s=20.0, warn=Warn("SIGUSR1", 30.0))


def limited(nodes: int = 2, **more: Any) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes, time_limit_s=100.0, stop=WARNED, **more))
    return cluster, cluster.run_gang(1)


def held(task: TaskId, running_s: float) -> TaskReport:
    return TaskReport(task, TaskState.STARTED, prepared=prepared(), running_s=running_s)


def test_all_nodes_are_notified_in_one_turn_and_the_stop_comes_later() -> None:
    cluster, tasks = limited()
    cluster.beat(69)
    assert not cluster.commands("n0", SignalTask)
    cluster.beat(2)
    for rank, name in enumerate(tasks):
        assert cluster.commands(f"n{rank}", SignalTask) == [SignalTask(name, "SIGUSR1", 1)]
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(30)
    assert cluster.shown(1) is JobState.STOPPING
    for rank, name in enumerate(tasks):
        stop = cluster.commands(f"n{rank}", StopTask)
        assert stop == [StopTask(name, "SIGUSR2", 20.0)]
        assert len(cluster.commands(f"n{rank}", SignalTask)) == 1


def test_a_job_that_is_stopped_before_is_not_warned() -> None:
    cluster, _ = limited()
    cluster.beat(10)
    cluster.cancel(1)
    cluster.beat(80)
    assert not cluster.commands("n0", SignalTask)
    assert not any(isinstance(fact, f.AttemptWarned) for fact in cluster.facts)


def test_a_node_that_was_away_is_notified_when_it_is_back() -> None:
    cluster, tasks = limited()
    cluster.beat(60)
    cluster.leave("n1")
    cluster.beat(15)
    assert not cluster.commands("n1", SignalTask)
    cluster.join("n1", tasks=(held(tasks[1], 75.0),))
    assert cluster.commands("n1", SignalTask) == [SignalTask(tasks[1], "SIGUSR1", 1)]


def test_a_coordinator_that_comes_back_warns_when_it_is_due_and_not_twice() -> None:
    cluster, tasks = limited(1)
    again = Cluster(state=cluster.state)
    again.join("n0", tasks=(held(tasks[0], 60.0),))
    again.beat(9)
    assert not again.commands("n0", SignalTask)
    again.beat(2)
    assert len(again.commands("n0", SignalTask)) == 1
    third = Cluster(state=again.state)
    third.join("n0", tasks=(held(tasks[0], 75.0),))
    # The same number: its shim knows that it has done this.
    assert third.commands("n0", SignalTask) == [SignalTask(tasks[0], "SIGUSR1", 1)]
    third.beat(20)
    assert sum(isinstance(fact, f.AttemptWarned) for fact in third.facts) == 0


def test_a_coordinator_that_was_away_for_both_warns_first() -> None:
    cluster, tasks = limited(1)
    again = Cluster(state=cluster.state)
    again.join("n0", tasks=(held(tasks[0], 200.0),))
    again.pass_time(0.001)
    sent = [type(c) for c in again.sent[again.job(1).attempts[0].tasks[0].node]]
    assert sent[-2:] == [SignalTask, StopTask]


def test_a_running_job_says_when_its_limit_is_and_a_stopping_one_when_its_grace_is_over() -> None:
    cluster, tasks = limited(1)
    started = cluster.now.wall
    cluster.beat(40)
    summary = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert (summary.limit_at, summary.kill_at) == (timestamp(started + 100.0), None)
    cluster.cancel(1, grace_s=50.0)
    stopped = cluster.now.wall
    cluster.beat(10)
    summary = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert (summary.limit_at, summary.kill_at) == (None, timestamp(stopped + 50.0))
    cluster.end(tasks[0], ExitStatus(0), stopped_by="stop")
    cluster.clean(tasks[0])
    summary = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert (summary.limit_at, summary.kill_at) == (None, None)


def test_a_second_cancel_never_makes_the_grace_longer() -> None:
    cluster, (task,) = limited(1)
    cluster.cancel(1)
    cluster.cancel(1, grace_s=3600.0)
    assert cluster.commands("n0", StopTask) == [StopTask(task, "SIGUSR2", 20.0)]
    cluster.beat(60)
    cluster.pass_time(60)
    assert cluster.shown(1) is JobState.STOPPING

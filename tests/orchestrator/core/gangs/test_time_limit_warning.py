"""The signal that warns of the time limit, and the grace of a stop."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.control_channel import RankReport, SignalTask, StopTask, TaskReport
from muster.protocol.link.terms import Terms
from muster.protocol.outcome import ExitStatus, Outcome
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


def held(task: TaskId, **more: Any) -> TaskReport:
    return TaskReport(task, TaskState.STARTED, prepared=prepared(), terms=1, **more)


def warnings(cluster: Cluster) -> list[f.AttemptWarned]:
    return [fact for fact in cluster.facts if isinstance(fact, f.AttemptWarned)]


def test_nodes_warn_and_the_first_that_reaches_the_limit_ends_the_gang() -> None:
    cluster, tasks = limited()
    assert [cluster.terms(it) for it in tasks] == [Terms(1, 100.0, 70.0, "SIGUSR1")] * 2
    cluster.beat(120)
    assert cluster.shown(1) is JobState.RUNNING
    for name in tasks:
        cluster.warn(name)
    assert warnings(cluster) == [f.AttemptWarned(JobId(1), 1, 70.0)]
    assert not cluster.commands("n0", SignalTask)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.reach_limit(tasks[1])
    assert cluster.shown(1) is JobState.STOPPING
    for rank, name in enumerate(tasks):
        assert cluster.commands(f"n{rank}", StopTask) == [StopTask(name, "SIGUSR2", 20.0)]
    assert len(warnings(cluster)) == 1


def test_a_second_warning_is_of_a_later_limit() -> None:
    cluster, (name,) = limited(1)
    cluster.warn(name)
    cluster.change(1, time_limit_s=90.0)
    cluster.warn(name)
    assert len(warnings(cluster)) == 1
    cluster.change(1, time_limit_s=300.0)
    cluster.warn(name)
    assert [it.warned_s for it in warnings(cluster)] == [70.0, 270.0]


def test_a_node_that_lies_makes_no_more_warnings() -> None:
    cluster, (name,) = limited(1)
    for number in range(50):
        cluster.report(name, TaskState.STARTED, prepared=prepared(), warned_s=60.0 + number)
    assert [it.warned_s for it in warnings(cluster)] == [60.0, 70.0]


def test_a_job_without_a_warning_is_not_warned() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(time_limit_s=100.0))
    (name,) = cluster.run_gang(1)
    cluster.report(name, TaskState.STARTED, prepared=prepared(), warned_s=70.0)
    assert warnings(cluster) == []


def test_a_coordinator_that_was_away_for_both_records_the_warning_first() -> None:
    cluster, tasks = limited(1)
    again = Cluster(state=cluster.replayed())
    again.join("n0", tasks=(held(tasks[0], running_s=200.0, warned_s=70.0, stopped_by="limit"),))
    told = [it for it in again.facts if isinstance(it, f.AttemptWarned | f.StopRequested)]
    assert [type(it) for it in told] == [f.AttemptWarned, f.StopRequested]
    assert again.shown(1) is JobState.STOPPING


def test_an_attempt_that_ended_at_its_limit_unseen_has_timed_out() -> None:
    cluster, tasks = limited(1)
    again = Cluster(state=cluster.replayed())
    ended = TaskReport(
        tasks[0],
        TaskState.CLEANED,
        prepared=prepared(),
        terms=1,
        warned_s=70.0,
        exit=ExitStatus(0),
        running_s=101.0,
        stopped_by="limit",
    )
    again.join("n0", tasks=(ended,))
    assert again.shown(1) is JobState.TIMEOUT
    assert again.cause(1).exit_code == 124


def test_a_failure_that_follows_from_the_limit_of_another_node_is_not_the_cause() -> None:
    cluster, tasks = limited()
    again = Cluster(state=cluster.replayed())
    lost = RankReport(
        1, exit=ExitStatus(1), error="RuntimeError: Connection closed by peer", at_s=99.0
    )
    failed = held(tasks[1], running_s=99.5, ranks=(lost,), first_failed=1)
    again.join("n1", tasks=(failed,))
    assert again.shown(1) is JobState.RUNNING
    again.join("n0", tasks=(held(tasks[0], running_s=100.0, stopped_by="limit"),))
    cause = again.job(1).attempts[0].cause
    assert cause is not None
    assert cause.outcome is Outcome.TIME_LIMIT


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

"""Changing a job that was submitted: its place in the queue, its time limit, its name."""

from __future__ import annotations

import pytest

from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.control_channel import SignalTask, StopTask, TaskReport
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Stop, Warn
from orchestrator.core.engine import user_requests
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
from orchestrator.core.facts.inputs import TimerFired
from orchestrator.core.views.display import job_summary
from tests.orchestrator.core.playbook import Cluster, prepared, spec

WARNED = Stop(warn=Warn("SIGUSR1", 30.0))


def running(time_limit_s: float | None = 100.0, stop: Stop = WARNED) -> tuple[Cluster, TaskId]:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(time_limit_s=time_limit_s, stop=stop))
    (name,) = cluster.run_gang(1)
    return cluster, name


def test_a_higher_priority_goes_before_at_once() -> None:
    cluster = Cluster()
    cluster.join("n0")
    for name in ("one", "two", "three"):
        cluster.submit(spec(name))
    (running_one,) = cluster.run_gang(1)
    assert cluster.change(3, priority=80) == a.Changed(JobId(3), anything=True)
    assert [job for _, job in cluster.state.queues["default"]] == [3, 2]
    assert not check(cluster.state)
    cluster.finish(running_one)
    assert cluster.job(3).attempts
    assert not cluster.job(2).attempts


def test_a_change_that_makes_a_job_fit_starts_it() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec())
    cluster.submit(spec(nodes=2))
    cluster.submit(spec())
    assert not cluster.job(3).attempts
    cluster.change(3, priority=51)
    assert cluster.job(3).attempts


def test_the_same_again_changes_nothing() -> None:
    cluster, _ = running()
    before = len(cluster.facts)
    assert cluster.change(1, priority=50, time_limit_s=100.0) == a.Changed(JobId(1), anything=False)
    assert len(cluster.facts) == before


def test_a_longer_limit_moves_the_end_and_the_warning() -> None:
    cluster, name = running()
    cluster.beat(60)
    cluster.change(1, time_limit_s=200.0)
    shown = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert shown.limit_at is not None
    cluster.beat(60)
    assert cluster.shown(1) is JobState.RUNNING
    assert not cluster.commands("n0", SignalTask)
    cluster.beat(55)
    assert cluster.commands("n0", SignalTask) == [SignalTask(name, "SIGUSR1", 1)]
    cluster.beat(30)
    assert cluster.commands("n0", StopTask)
    assert cluster.job(1).attempts[0].cause is not None


def test_a_shorter_limit_too() -> None:
    cluster, _ = running(1000.0)
    cluster.beat(60)
    cluster.change(1, time_limit_s=100.0)
    cluster.beat(15)
    assert cluster.commands("n0", SignalTask)
    cluster.beat(30)
    assert cluster.shown(1) is JobState.STOPPING


def test_a_time_limit_in_the_past_is_refused() -> None:
    cluster, _ = running(1000.0)
    cluster.beat(60)
    declined = cluster.change(1, time_limit_s=50.0)
    assert isinstance(declined, a.Declined)
    assert declined.code == "limit_over"
    assert "has run for 1m: a time limit of 50s" in declined.text
    assert "muster cancel 1" in declined.hint


def test_a_limit_that_is_taken_away_never_comes() -> None:
    cluster, _ = running(stop=Stop())
    cluster.change(1, time_limit_s=None)
    cluster.beat(300)
    assert cluster.shown(1) is JobState.RUNNING


def test_a_job_without_a_time_limit_gets_one() -> None:
    cluster, _ = running(None, Stop())
    cluster.beat(50)
    cluster.change(1, time_limit_s=70.0)
    cluster.beat(15)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(10)
    assert cluster.shown(1) is JobState.STOPPING


def test_a_timer_that_fired_as_the_limit_was_moved_ends_nothing() -> None:
    cluster, _ = running()
    cluster.beat(99)
    limit = next(t for t in cluster.timers if t.kind is a.TimerKind.LIMIT)
    cluster.change(1, time_limit_s=200.0)
    cluster.turn(TimerFired(limit))
    assert cluster.shown(1) is JobState.RUNNING


def test_ranks_that_were_warned_are_warned_again_of_a_later_end() -> None:
    cluster, name = running()
    cluster.beat(80)
    assert len(cluster.commands("n0", SignalTask)) == 1
    cluster.change(1, time_limit_s=90.0)
    assert len(cluster.commands("n0", SignalTask)) == 1
    cluster.change(1, time_limit_s=300.0)
    cluster.beat(180)
    assert len(cluster.commands("n0", SignalTask)) == 1
    cluster.beat(15)
    assert cluster.commands("n0", SignalTask)[-1] == SignalTask(name, "SIGUSR1", 2)


def test_a_changed_limit_outlives_the_coordinator() -> None:
    cluster, name = running()
    cluster.beat(10)
    cluster.change(1, time_limit_s=200.0)
    cluster.leave("n0")
    held = TaskReport(name, TaskState.STARTED, prepared=prepared(), running_s=150.0)
    cluster.join("n0", tasks=(held,))
    cluster.beat(45)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(10)
    assert cluster.shown(1) is JobState.STOPPING


def test_the_name_changes_while_it_waits_and_then_no_more() -> None:
    cluster, _ = running()
    cluster.submit(spec("second"))
    cluster.change(2, name="other")
    assert cluster.job(2).spec.name == "other"
    declined = cluster.change(1, name="other")
    assert isinstance(declined, a.Declined)
    assert declined.code == "not_waiting"


def test_a_job_that_has_changed_since_it_was_looked_at_is_left_alone() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    seen = frozenset({cluster.job(1).revision})
    cluster.change(1, priority=60, revisions=seen)
    declined = cluster.change(1, priority=70, revisions=seen)
    assert isinstance(declined, a.Declined)
    assert declined.code == a.CHANGED
    assert cluster.job(1).spec.priority == 60


def test_a_job_has_so_many_changes_in_its_history_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_requests, "REQUESTS_MAX", 20)
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    cluster.submit(spec())
    answers = [cluster.change(2, priority=60 + number) for number in range(30)]
    declined = [answer for answer in answers if isinstance(answer, a.Declined)]
    assert len(declined) == 10
    assert {answer.code for answer in declined} == {a.CHANGED_TOO_OFTEN}
    assert cluster.replayed().jobs[JobId(2)].requests == 20
    assert isinstance(cluster.cancel(2), a.Cancelled)

"""Changing a job that was submitted: its place in the queue, its time limit, its name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.control_channel import Command, TaskReport
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.outcome import Outcome
from muster.protocol.states import TaskState
from muster.spec.model import Stop, Warn
from orchestrator.core.engine import user_requests
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
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


def changed(cluster: Cluster) -> list[Command]:
    return cluster.commands("n0", ChangeTerms)


def test_a_changed_limit_is_sent_to_its_nodes() -> None:
    cluster, name = running()
    cluster.beat(60)
    cluster.change(1, time_limit_s=200.0)
    assert changed(cluster) == [ChangeTerms(name, Terms(2, 200.0, 170.0, "SIGUSR1"))]
    shown = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert shown.limit_at is not None
    cluster.change(1, time_limit_s=80.0)
    assert changed(cluster)[-1] == ChangeTerms(name, Terms(3, 80.0, 50.0, "SIGUSR1"))
    cluster.report(name, TaskState.STARTED, prepared=prepared())
    cluster.change(1, priority=60)
    assert len(changed(cluster)) == 2
    assert cluster.replayed().jobs[JobId(1)].attempts[0].terms == 3


def test_a_limit_shorter_than_its_warning_warns_at_once() -> None:
    cluster, name = running()
    cluster.change(1, time_limit_s=10.0)
    assert changed(cluster) == [ChangeTerms(name, Terms(2, 10.0, 0.0, "SIGUSR1"))]


def test_a_time_limit_in_the_past_is_refused() -> None:
    cluster, _ = running(1000.0)
    cluster.beat(60)
    declined = cluster.change(1, time_limit_s=50.0)
    assert isinstance(declined, a.Declined)
    assert declined.code == "limit_over"
    assert "has run for 1m: a time limit of 50s" in declined.text
    assert "muster cancel 1" in declined.hint


def test_a_limit_is_taken_away_and_given() -> None:
    cluster, name = running(stop=Stop())
    cluster.change(1, time_limit_s=None)
    cluster.change(1, time_limit_s=70.0)
    expected = [ChangeTerms(name, Terms(2)), ChangeTerms(name, Terms(3, 70.0))]
    assert changed(cluster) == expected


def test_a_node_at_its_gate_gets_a_changed_limit_too() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, time_limit_s=100.0))
    cluster.change(1, time_limit_s=90.0)
    tasks = [it.id for it in cluster.job(1).attempts[0].tasks]
    for name in tasks:
        cluster.prepare(name)
    assert [cluster.terms(name) for name in tasks] == [Terms(2, 90.0)] * 2
    cluster.report(tasks[0], TaskState.ARRANGED, prepared=prepared())
    cluster.change(1, time_limit_s=80.0)
    assert changed(cluster) == [ChangeTerms(tasks[0], Terms(3, 80.0))]


def test_a_changed_limit_is_repeated_until_it_is_confirmed() -> None:
    cluster, name = running()
    cluster.leave("n0")
    cluster.change(1, time_limit_s=200.0)
    assert not changed(cluster)
    held = TaskReport(name, TaskState.STARTED, prepared=prepared(), running_s=15.0, terms=1)
    cluster.join("n0", tasks=(held,))
    cluster.join("n0", tasks=(held,))
    assert changed(cluster) == [ChangeTerms(name, Terms(2, 200.0, 170.0, "SIGUSR1"))] * 2
    assert pending(cluster) == ["n0"]
    cluster.report(name, TaskState.STARTED, prepared=prepared(), terms=2)
    assert pending(cluster) == []
    cluster.join("n0", tasks=(replace(held, terms=2),))
    assert len(changed(cluster)) == 2


def pending(cluster: Cluster) -> list[str]:
    return list(job_summary(cluster.state, cluster.job(1), cluster.now).limit_pending)


def test_a_node_that_has_only_the_old_limit_ends_the_job_and_is_named() -> None:
    cluster, name = running()
    cluster.leave("n0")
    cluster.change(1, time_limit_s=200.0)
    over = TaskReport(
        name,
        TaskState.STARTED,
        prepared=prepared(),
        running_s=101.0,
        terms=1,
        stopped_by="limit",
    )
    cluster.join("n0", tasks=(over,))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.outcome is Outcome.TIME_LIMIT
    assert cause.text == "n0 had not received the new time limit when the old one was over"


def test_a_job_that_ran_before_nodes_kept_limits_gets_its_limit() -> None:
    cluster, name = running()
    held = TaskReport(name, TaskState.STARTED, prepared=prepared(), running_s=15.0)
    again = Cluster(state=cluster.replayed())
    again.join("n0", tasks=(held,))
    assert changed(again) == [ChangeTerms(name, Terms(1, 100.0, 70.0, "SIGUSR1"))]


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

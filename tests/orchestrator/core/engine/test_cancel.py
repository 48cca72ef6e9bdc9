"""Cancelling in every state, twice, and against a natural end."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId
from muster.protocol.link.control_channel import StopTask, TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry, Stop
from orchestrator.core.engine import user_requests
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.gangs.log_delivery import tasks_with_pending_logs
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task


def cluster_with(nodes: int = 1, **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes, **more))
    return cluster


def test_queued() -> None:
    cluster = cluster_with()
    cluster.submit(spec())
    assert cluster.cancel(2) == a.Cancelled(JobId(2), already_ended=False)
    assert cluster.shown(2) is JobState.CANCELLED
    assert cluster.cause(2).exit_code == 121


def test_preparing_stops_the_task_and_waits_for_the_node() -> None:
    cluster = cluster_with()
    cluster.cancel(1, reason="typo")
    assert cluster.shown(1) is JobState.STOPPING
    assert cluster.commands("n0", StopTask)
    cluster.clean(task(1, 1, 0))
    assert cluster.shown(1) is JobState.CANCELLED
    assert cluster.cause(1).text == "cancelled by ada: typo"


def test_a_task_that_prepares_while_it_is_cancelled_is_never_started() -> None:
    cluster = cluster_with()
    cluster.cancel(1)
    cluster.prepare(task(1, 1, 0))
    assert cluster.job(1).attempts[0].master_port == 0
    cluster.clean(task(1, 1, 0))
    assert cluster.shown(1) is JobState.CANCELLED


def test_a_node_that_never_had_the_task_has_no_log_of_it() -> None:
    cluster = cluster_with(nodes=2)
    cluster.prepare(task(1, 1, 0))
    cluster.cancel(1)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    assert [it.rank for it in tasks_with_pending_logs(cluster.job(1), ())] == [0]


def test_running_uses_the_grace_asked_for() -> None:
    cluster = cluster_with(stop=Stop("SIGINT", 90.0))
    (name,) = cluster.run_gang(1)
    cluster.cancel(1, grace_s=3.0)
    assert cluster.commands("n0", StopTask) == [StopTask(name, "SIGINT", 3.0)]
    cluster.end(name, ExitStatus(signal=2), stopped_by="stop")
    cluster.clean(name)
    assert cluster.shown(1) is JobState.CANCELLED


def test_twice_and_then_by_force() -> None:
    cluster = cluster_with()
    (name,) = cluster.run_gang(1)
    cluster.cancel(1)
    before = len(cluster.facts)
    assert cluster.cancel(1) == a.Cancelled(JobId(1), already_ended=False)
    assert len(cluster.facts) == before
    cluster.cancel(1, force=True)
    last = cluster.commands("n0", StopTask)[-1]
    assert isinstance(last, StopTask)
    assert last.force
    cluster.end(name, ExitStatus(signal=9), stopped_by="kill")
    cluster.clean(name)
    assert cluster.cancel(1) == a.Cancelled(JobId(1), already_ended=True)


def test_the_first_durable_event_wins() -> None:
    cluster = cluster_with()
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(0))
    assert cluster.cancel(1) == a.Cancelled(JobId(1), already_ended=False)
    cluster.clean(name)
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_a_failing_job_that_is_cancelled_is_not_tried_again() -> None:
    cluster = cluster_with(retry=Retry(user=5))
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(7))
    cluster.cancel(1)
    cluster.clean(name)
    assert cluster.shown(1) is JobState.CANCELLED


def test_while_it_waits_to_be_tried_again() -> None:
    cluster = cluster_with(retry=Retry(user=5, backoff_s=30.0))
    (name,) = cluster.run_gang(1)
    cluster.finish(name, code=7)
    cluster.cancel(1)
    assert cluster.shown(1) is JobState.CANCELLED
    cluster.pass_time(60)
    assert len(cluster.job(1).attempts) == 1


def test_a_cancel_waits_for_a_node_that_is_away() -> None:
    cluster = cluster_with()
    (name,) = cluster.run_gang(1)
    cluster.leave("n0")
    cluster.cancel(1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.sent.clear()
    cluster.join("n0", tasks=(TaskReport(name, TaskState.STARTED, prepared=prepared()),))
    assert cluster.commands("n0", StopTask)


def test_an_unknown_job_is_declined() -> None:
    declined = Cluster().cancel(99)
    assert isinstance(declined, a.Declined)
    assert declined.code == "unknown_job"


def kill_in_s(cluster: Cluster) -> float:
    """Return the rest of the grace period."""
    at = job_view(cluster.state, cluster.job(1), cluster.now).kill_at
    assert at is not None
    return round(at.timestamp() - cluster.now.wall, 3)


def noted(result: a.Result) -> str:
    assert isinstance(result, a.Cancelled), result
    return result.note


def test_the_grace_of_a_stop_that_has_begun_is_cut_and_never_made_longer() -> None:
    cluster = cluster_with(2, stop=Stop("SIGTERM", 600.0))
    first, second = cluster.run_gang(1)
    cluster.end(second, ExitStatus(1))
    cluster.beat(10)
    assert kill_in_s(cluster) == 590
    longer = noted(cluster.cancel(1, grace_s=900.0))
    assert longer == "its stop has begun with a grace of 10m, which cannot be extended"
    assert kill_in_s(cluster) == 590
    cut = noted(cluster.cancel(1, grace_s=60.0))
    assert cut == "its grace of 10m is cut to 1m from now"
    assert kill_in_s(cluster) == 60
    assert cluster.commands("n0", StopTask)[-1] == StopTask(first, "SIGTERM", 60.0)
    cluster.leave("n0")
    cluster.sent.clear()
    cluster.join("n0", tasks=(TaskReport(first, TaskState.STARTED, prepared=prepared()),))
    assert cluster.commands("n0", StopTask) == [StopTask(first, "SIGTERM", 60.0)]
    timeline = [step.text for step in job_view(cluster.state, cluster.job(1), cluster.now).timeline]
    assert "grace period cut to 1m by ada" in timeline
    cluster.cancel(1, force=True)
    assert cluster.commands("n0", StopTask)[-1] == StopTask(first, "SIGTERM", 60.0, force=True)
    assert kill_in_s(cluster) <= 0
    assert noted(cluster.cancel(1, grace_s=1.0)) == "it is being killed already"


def test_a_cut_that_would_come_later_than_the_end_of_the_grace_is_not_shown_as_later() -> None:
    cluster = cluster_with(stop=Stop("SIGTERM", 60.0))
    cluster.run_gang(1)
    cluster.cancel(1)
    cluster.beat(50)
    cluster.cancel(1, grace_s=30.0)
    assert kill_in_s(cluster) == 10


def test_on_a_full_disk_a_grace_is_cut_by_half_or_not_at_all() -> None:
    """Each cut is recorded, and there are always smaller ones."""
    cluster = cluster_with(stop=Stop(grace_s=600.0))
    cluster.run_gang(1)
    cluster.cancel(1)
    cluster.turn(s.DiskSpaceChecked("/var is full"))
    before = len(cluster.facts)
    assert "/var is full" in noted(cluster.cancel(1, grace_s=400.0))
    assert len(cluster.facts) == before
    assert noted(cluster.cancel(1, grace_s=60.0)) == "its grace of 10m is cut to 1m from now"


def test_the_number_of_small_cuts_in_a_history_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_requests, "REQUESTS_MAX", 20)
    cluster = cluster_with(stop=Stop(grace_s=600.0))
    cluster.run_gang(1)
    cluster.cancel(1)
    notes = [noted(cluster.cancel(1, grace_s=599.0 - number)) for number in range(30)]
    assert sum("is cut to" in note for note in notes) == 20
    assert "a small cut is not recorded now" in notes[-1]
    assert "is cut to 1m" in noted(cluster.cancel(1, grace_s=60.0))


def test_a_rank_that_ended_by_itself_has_no_grace_to_cut() -> None:
    cluster = cluster_with()
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(0))
    assert "ended by itself" in noted(cluster.cancel(1, grace_s=1.0))


def test_a_cancel_while_a_failed_gang_stops_counts_although_no_retry_is_left() -> None:
    for retries in (0, 1):
        cluster = cluster_with(2, retry=Retry(user=retries))
        failed, other = cluster.run_gang(1)
        cluster.end(failed, ExitStatus(1))
        assert cluster.shown(1) is JobState.STOPPING
        cluster.cancel(1, reason="enough")
        for one in (failed, other):
            cluster.clean(one, exit=ExitStatus(1))
        assert cluster.shown(1) is JobState.CANCELLED
        assert cluster.cause(1).text == "cancelled by ada: enough"

"""Views of a job."""

from __future__ import annotations

from muster.protocol.ids import JobId
from muster.protocol.link.control_channel import RankReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task


def test_a_script_that_overlooked_a_failure_succeeds_with_a_warning() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1, launcher="none"))
    cluster.run_gang(1)
    ended = ExitStatus(0)
    cluster.report(
        task(1, 1, 0),
        TaskState.EXITED,
        prepared=prepared(),
        exit=ended,
        ranks=(RankReport(0, exit=ended, error="ChildFailedError"),),
    )
    cluster.clean(task(1, 1, 0), exit=ended)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.state is JobState.SUCCEEDED
    (warning,) = view.attempts[0].tasks[0].warnings
    assert "reported ranks that failed" in warning


def test_a_job_that_ended_while_the_coordinator_was_away_ended_when_its_ranks_did() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1))
    (name,) = cluster.run_gang(1)
    started = cluster.job(1).attempts[0].started_at
    assert started is not None
    cluster.beat(300)
    cluster.report(
        name, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0), running_s=200.0
    )
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.ended_at == timestamp(cluster.now.wall)
    assert view.run_ended_at == view.ended_unseen_at == timestamp(started + 200)
    assert [step.text for step in view.timeline if step.at == view.run_ended_at] == [
        "every rank ended, which was reported later"
    ]
    assert cluster.replayed().jobs[JobId(1)].attempts[0].tasks[0].ran_s == 200.0


def test_an_end_that_is_reported_at_once_has_one_time() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1))
    (name,) = cluster.run_gang(1)
    cluster.beat(300)
    cluster.report(
        name, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0), running_s=299.5
    )
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.ended_unseen_at is None
    assert view.run_ended_at == view.ended_at

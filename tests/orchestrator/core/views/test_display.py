"""Views of a job."""

from __future__ import annotations

from muster.protocol.link.control_channel import RankReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
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

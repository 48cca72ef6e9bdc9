"""A node on which processes outlive SIGKILL."""

from __future__ import annotations

from muster.protocol.messages import TaskReport
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState, TaskState
from orchestrator.core.display import node_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task


def reason_of(cluster: Cluster) -> str:
    drain = cluster.node("a").drain
    assert drain is not None
    return drain.reason


def test_it_is_drained_with_the_pids_in_the_reason_and_given_no_job() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.cancel(1)
    pids = tuple(range(101, 111))
    cluster.report(running, TaskState.STARTED, prepared=prepared(), survivors=pids)
    drain = node_view(cluster.node("a"), cluster.now).drain
    assert drain is not None
    assert (drain.user, drain.quarantine) == ("muster", False)
    assert drain.reason.startswith(
        "cannot be cleaned: SIGKILL does not end 101, 102, 103, 104, 105, 106, 107, 108 and 2 more"
        " of job 1,"
    )
    # Said again it is no news, and the job that follows waits although the first has ended.
    before = cluster.node("a").drains
    cluster.report(running, TaskState.STARTED, prepared=prepared(), survivors=pids)
    assert cluster.node("a").drains == before
    cluster.clean(running)
    assert cluster.shown(1) is JobState.CANCELLED
    cluster.submit(spec())
    assert cluster.shown(2) is JobState.QUEUED
    cluster.resume("a", check=False)
    assert cluster.shown(2) is JobState.PREPARING


def test_a_task_that_was_given_up_as_lost_drains_it_too() -> None:
    cluster = Cluster()
    cluster.join("a", tasks=(TaskReport(task(7, 1, 0), TaskState.STARTED, survivors=(33,)),))
    assert "SIGKILL does not end 33 of job 7" in reason_of(cluster)


def test_a_drain_by_a_person_keeps_its_reason() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.drain("a", "bad DIMM")
    cluster.report(running, TaskState.STARTED, prepared=prepared(), survivors=(5,))
    assert reason_of(cluster) == "bad DIMM"


def test_what_ended_the_rank_stays_the_cause() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    bad = prepared(address="nowhere")
    cluster.report(task(1, 1, 0), TaskState.PREPARED, prepared=bad, survivors=(5,))
    (attempt,) = cluster.job(1).attempts
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.ARRANGE_FAILED
    assert "SIGKILL does not end 5" in reason_of(cluster)

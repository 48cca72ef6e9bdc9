"""A node on which processes outlive SIGKILL."""

from __future__ import annotations

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import ForgetTask, TaskReport
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.service import NodeDrained
from orchestrator.core.nodes.unkillable import PIDS_KEPT, TASKS_KEPT
from orchestrator.core.views.display import node_view
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
        "unkillable: SIGKILL does not end 101, 102, 103, 104, 105, 106, 107, 108 and 2 more"
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


def test_the_end_of_the_rank_stays_the_cause() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    bad = prepared(address="nowhere")
    cluster.report(task(1, 1, 0), TaskState.PREPARED, prepared=bad, survivors=(5,))
    (attempt,) = cluster.job(1).attempts
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.ARRANGE_FAILED
    assert "SIGKILL does not end 5" in reason_of(cluster)


def test_a_gang_waits_for_nothing_that_computes_no_more() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2))
    held, other = cluster.run_gang(1)
    cluster.cancel(1)
    cluster.clean(other)
    cluster.report(held, TaskState.STARTED, prepared=prepared(), survivors=(7,), doomed=True)
    assert cluster.shown(1) is JobState.CANCELLED
    name = cluster.state.task(held).node  # type: ignore[union-attr]
    assert [it.name for it in cluster.state.nodes.values() if it.drain is not None] == [name]
    cluster.submit(spec())
    assert cluster.job(2).attempts[0].tasks[0].node != name
    # Until it is gone, the node is resumed by nobody who does not insist.
    declined = cluster.resume(name)
    assert isinstance(declined, a.Declined)
    assert f"SIGKILL has not ended 7 of task {held} yet" in declined.text
    session = cluster.node(name).session
    assert session is not None
    cluster.turn(s.ReportReceived(session, TaskReport(held, TaskState.CLEANED)))
    assert cluster.commands(name, ForgetTask)[-1] == ForgetTask(held)
    assert cluster.resume(name) == a.NodeServiceChanged(NodeName(name), anything=True)


def test_it_is_tried_again_elsewhere_once_its_failed_attempt_is_free() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(retry=Retry(infra=1, backoff_s=0.0)))
    (held,) = cluster.run_gang(1)
    first = cluster.job(1).attempts[0].tasks[0].node
    stopped = {"stopped_by": "shim_lost", "prepared": prepared(), "survivors": (7,)}
    cluster.report(held, TaskState.STARTED, **stopped)
    assert cluster.job(1).attempts[0].cause is not None
    assert cluster.shown(1) is JobState.STOPPING
    cluster.report(held, TaskState.STARTED, doomed=True, **stopped)
    cluster.pass_time(2.0)
    assert cluster.job(1).attempts[1].tasks[0].node != first


def test_a_task_that_may_run_on_is_awaited() -> None:
    """It has outlived SIGKILL, as it forked faster or is another user's: none is pending for it."""
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.cancel(1)
    cluster.report(running, TaskState.STARTED, prepared=prepared(), survivors=(7,))
    assert cluster.shown(1) is JobState.STOPPING
    cluster.report(running, TaskState.CLEANED, survivors=(7,), doomed=True)
    assert cluster.shown(1) is JobState.CANCELLED


def test_a_new_coordinator_hears_of_it_with_the_hello() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.cancel(1)
    cluster.leave("a")
    report = TaskReport(running, TaskState.STARTED, survivors=(7,), doomed=True)
    cluster.join("a", tasks=(report,))
    assert cluster.shown(1) is JobState.CANCELLED
    assert "SIGKILL does not end 7 of job 1" in reason_of(cluster)
    assert isinstance(cluster.resume("a"), a.Declined)
    # Processes that a new connection does not report are gone.
    cluster.leave("a")
    cluster.join("a")
    assert cluster.resume("a") == a.NodeServiceChanged(NodeName("a"), anything=True)


def test_several_tasks_that_cannot_be_killed_make_one_drain() -> None:
    cluster = Cluster()
    stuck = tuple(
        TaskReport(task(job, 1, 0), TaskState.STARTED, survivors=(30 + job,)) for job in (7, 8, 9)
    )
    cluster.join("a", tasks=stuck)
    assert [fact for fact in cluster.facts if isinstance(fact, NodeDrained)] != []
    assert cluster.node("a").drains == 1
    assert "SIGKILL does not end 37 of job 7" in reason_of(cluster)


def test_a_hello_with_thousands_of_them_is_bounded_and_displaces_no_real_one() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    pids = tuple(range(2, 4000))
    made_up = [TaskReport(task(n, 9, 0), TaskState.STARTED, survivors=pids) for n in range(9, 2000)]
    cluster.leave("a")
    cluster.facts.clear()
    held = TaskReport(running, TaskState.STARTED, prepared=prepared(), survivors=(5,))
    cluster.join("a", tasks=(*made_up, held))
    assert len([fact for fact in cluster.facts if isinstance(fact, NodeDrained)]) == 1
    assert "SIGKILL does not end 5 of job 1" in reason_of(cluster)
    known = cluster.node("a").survivors
    assert known[running] == (5,)
    assert len(known) == TASKS_KEPT
    assert max(map(len, known.values())) == PIDS_KEPT
    # A repeated report for a known task takes no more room.
    cluster.report(running, TaskState.STARTED, prepared=prepared(), survivors=pids)
    assert len(cluster.node("a").survivors[running]) == PIDS_KEPT


def stick(cluster: Cluster, job: int) -> str:
    """Let a job of one node fail with a process that SIGKILL does not end; return the node."""
    number = cluster.job(job).last_attempt
    (held,) = cluster.run_gang(job, attempt=number)
    cluster.report(
        held,
        TaskState.STARTED,
        prepared=prepared(),
        stopped_by="shim_lost",
        survivors=(7,),
        doomed=True,
    )
    return cluster.job(job).attempts[-1].tasks[0].node


def test_a_job_that_does_it_on_two_nodes_is_not_retried() -> None:
    """A program can do it on purpose, with a FUSE file system of its own."""
    cluster = Cluster()
    cluster.join("a", "b", "c", "d")
    cluster.submit(spec(retry=Retry(infra=1000, backoff_s=0.0)))
    first = stick(cluster, 1)
    cluster.pass_time(2.0)
    second = stick(cluster, 1)
    cluster.pass_time(60.0)
    job = cluster.job(1)
    assert cluster.shown(1) is JobState.FAILED
    assert len(job.attempts) == 2
    assert job.cause is not None
    assert job.cause.text.endswith(
        f"not retried, SIGKILL does not end its processes on {first}, {second}"
    )


def test_the_jobs_of_one_user_drain_two_nodes_at_most() -> None:
    cluster = Cluster()
    cluster.join("a", "b", "c", "d")
    nodes = []
    for job in (1, 2, 3):
        cluster.submit(spec(retry=Retry(infra=0)))
        nodes.append(stick(cluster, job))
    last = nodes[-1]
    drained = [node for node in cluster.state.nodes.values() if node.drain is not None]
    assert len(drained) == 2
    assert last not in {node.name for node in drained}
    warned = node_view(cluster.node(last), cluster.now).warnings
    assert warned == ("SIGKILL has not ended 7 of task 3.1.0 yet",)
    # The limit counts for each user: the job of another user drains its node.
    cluster.submit(spec(retry=Retry(infra=0)), user="ben")
    other = stick(cluster, 4)
    assert cluster.node(other).drain is not None


def test_a_gang_does_not_wait_for_a_disk_that_takes_no_exit_record() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2))
    held, other = cluster.run_gang(1)
    how = ExitStatus(3)
    cluster.report(held, TaskState.EXITED, prepared=prepared(), exit=how)
    cluster.clean(other)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.report(held, TaskState.EXITED, prepared=prepared(), exit=how, doomed=True)
    assert cluster.shown(1) is JobState.FAILED
    assert cluster.node("a").drain is None

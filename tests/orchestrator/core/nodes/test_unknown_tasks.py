"""Tasks that a node names and the journal lacks: which jobs they hold up, and how many count."""

from __future__ import annotations

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import JobState, TaskState
from orchestrator.core.facts import inputs as s
from orchestrator.core.nodes.restored import UNKNOWN_MAX
from orchestrator.core.scheduling.restore_hold import why_job_held
from tests.orchestrator.core.nodes.test_restored import lost, replayed, waiting
from tests.orchestrator.core.playbook import Cluster, spec, task

CLAIMED = tuple(TaskReport(task(n, 9, 0), TaskState.STARTED) for n in range(1, 3000))


def test_a_node_that_claims_tasks_of_jobs_to_come_holds_up_no_job() -> None:
    """No journal was restored, and the node answers no stop."""
    cluster = Cluster()
    cluster.join("n1")
    cluster.join("liar", tasks=CLAIMED)
    cluster.submit(spec("honest"))
    assert cluster.job(1).attempts
    assert cluster.job(1).attempts[0].tasks[0].node == "n1"


def test_a_node_holds_up_no_job_that_was_submitted_before_its_hello() -> None:
    cluster = Cluster()
    cluster.join("n1", "n2")
    cluster.leave("n2")
    cluster.submit(spec("first", nodes=2))
    cluster.join("liar", tasks=CLAIMED)
    assert cluster.shown(1) is JobState.QUEUED, "the node has tasks, and so gets none"
    cluster.join("n2")
    assert cluster.job(1).attempts


def test_a_job_of_before_the_start_waits_for_its_unknown_task_and_later_jobs_do_not() -> None:
    """A state folder was put back from a snapshot: only older jobs may lack an attempt."""
    cluster = Cluster(replayed(waiting("n1", "n2")))
    cluster.join("liar", tasks=CLAIMED)
    cluster.join("n1", "n2")
    cluster.submit(spec("later"))
    assert cluster.shown(1) is JobState.QUEUED
    held = why_job_held(cluster.state, cluster.job(1))
    assert "task 1.9.0 on liar; if nothing of it runs there: `muster node revoke NODE`" in held
    assert cluster.job(2).attempts
    cluster.leave("liar")
    lost(cluster, "liar")
    assert cluster.job(1).attempts
    assert not cluster.state.unknown


def test_few_unknown_tasks_of_a_node_count_and_first_those_of_waiting_jobs() -> None:
    backup = Cluster()
    backup.join("n1")
    backup.leave("n1")
    for number in range(200):
        backup.submit(spec(f"of-{number}"))
    cluster = Cluster(backup.replayed())
    made_up = tuple(TaskReport(task(n, 1, 0), TaskState.STARTED) for n in range(1000, 3000))
    cluster.join("n1", tasks=(*made_up, TaskReport(task(150, 1, 0), TaskState.STARTED)))
    known = cluster.state.unknown
    assert len(known.on(NodeName("n1"))) == UNKNOWN_MAX
    assert known.of(JobId(150)) == [("n1", task(150, 1, 0))]
    cluster.join("n1", tasks=CLAIMED)
    assert len(known.by_job) == UNKNOWN_MAX


def test_survivors_of_a_task_of_another_node_count_for_nobody() -> None:
    """Else a node could use up the drains and the retries of any user."""
    cluster = Cluster()
    cluster.join("n1")
    cluster.submit(spec())
    report = TaskReport(task(1, 1, 0), TaskState.STARTED, survivors=(7,))
    cluster.join("liar", tasks=(report,))
    session = cluster.node("liar").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, report))
    assert not cluster.node("liar").survivors
    assert cluster.node("liar").drain is None


def test_survivors_of_an_unknown_task_drain_their_node_for_no_user() -> None:
    cluster = Cluster()
    cluster.join("n1")
    cluster.submit(spec())
    cluster.join("n2", tasks=(TaskReport(task(1, 9, 0), TaskState.STARTED, survivors=(7,)),))
    drain = cluster.node("n2").drain
    assert drain is not None
    assert drain.left_by is None
    assert cluster.node("n2").survivors

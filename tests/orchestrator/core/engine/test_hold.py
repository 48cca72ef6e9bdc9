"""Holding and releasing jobs in every state."""

from __future__ import annotations

import msgspec
import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState
from muster.spec.model import Retry
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from orchestrator.core.views.display import job_summary, job_view
from tests.orchestrator.core.playbook import INVENTORY, Cluster, spec, task

CHANGED = a.Changed(JobId(2), anything=True)
SAME = a.Changed(JobId(2), anything=False)


def busy() -> Cluster:
    """Make a cluster with one node, which runs job 1; job 2 waits."""
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    cluster.submit(spec("second"))
    return cluster


def free(cluster: Cluster, job: int = 1) -> None:
    (name,) = cluster.run_gang(job)
    cluster.finish(name)


def test_a_held_job_does_not_start_until_it_is_released() -> None:
    cluster = busy()
    assert cluster.change(2, hold=True, reason="wait for data") == CHANGED
    assert cluster.shown(2) is JobState.HELD
    free(cluster)
    assert not cluster.job(2).attempts
    assert cluster.change(2, user="bob", hold=False) == CHANGED
    assert len(cluster.job(2).attempts) == 1
    assert not check(cluster.state)


def test_the_holder_and_the_reason_are_shown() -> None:
    cluster = busy()
    cluster.change(2, hold=True, reason="wait for data")
    shown = job_summary(cluster.state, cluster.job(2), cluster.now)
    assert (shown.reason.code, shown.reason.text) == ("held", "held by ada: wait for data")
    assert shown.held_by == "ada"
    cluster.change(2, user="bob", hold=False)
    view = job_view(cluster.state, cluster.job(2), cluster.now)
    assert view.held_by == ""
    texts = [step.text for step in view.timeline]
    assert texts[1:3] == ["held by ada: wait for data", "released by bob"]


def test_jobs_behind_a_held_job_go_first_and_it_keeps_its_place() -> None:
    cluster = busy()
    for name in ("third", "fourth"):
        cluster.submit(spec(name))
    cluster.change(2, hold=True)
    free(cluster)
    assert len(cluster.job(3).attempts) == 1
    cluster.change(2, hold=False)
    free(cluster, 3)
    assert len(cluster.job(2).attempts) == 1
    assert not cluster.job(4).attempts


def test_twice_is_once() -> None:
    cluster = busy()
    cluster.change(2, hold=True)
    assert cluster.change(2, hold=True, user="bob") == SAME
    assert cluster.job(2).hold is not None
    assert cluster.change(2, hold=False) == CHANGED
    assert cluster.change(2, hold=False) == SAME


def test_the_head_of_a_queue_that_is_held_makes_room() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(priority=50))
    cluster.submit(spec(nodes=2, priority=50))
    cluster.submit(spec(priority=10))
    assert not cluster.job(3).attempts
    cluster.change(2, hold=True)
    assert len(cluster.job(3).attempts) == 1


@pytest.mark.parametrize("running", [False, True])
def test_an_active_job_is_refused(*, running: bool) -> None:
    cluster = busy()
    if running:
        cluster.run_gang(1)
    declined = cluster.change(1, hold=True)
    assert isinstance(declined, a.Declined)
    assert declined.code == "not_waiting"
    assert "muster rerun 1" in declined.hint


def test_a_job_in_backoff_is_held_and_released_at_once() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(retry=Retry(user=1, backoff_s=30.0)))
    (name,) = cluster.run_gang(1)
    cluster.finish(name, code=7)
    assert cluster.shown(1) is JobState.RETRYING
    cluster.change(1, hold=True)
    cluster.beat(60)
    assert cluster.shown(1) is JobState.HELD
    cluster.change(1, hold=False)
    assert len(cluster.job(1).attempts) == 2


def test_a_job_that_is_not_held_cannot_be_released() -> None:
    cluster = busy()
    declined = cluster.change(2, hold=False)
    assert isinstance(declined, a.Declined)
    assert (declined.code, declined.text) == ("not_held", "job 2 is not held: it is QUEUED")


def test_an_ended_or_unknown_job_is_refused() -> None:
    cluster = busy()
    free(cluster)
    ended, unknown = cluster.change(1, hold=True), cluster.change(9, hold=True)
    assert isinstance(ended, a.Declined)
    assert isinstance(unknown, a.Declined)
    assert (ended.code, unknown.code) == ("already_ended", "unknown_job")
    assert ended.text == "job 1 has ended (SUCCEEDED) and cannot be changed"


def test_a_held_job_is_cancelled_at_once() -> None:
    cluster = busy()
    cluster.change(2, hold=True)
    assert cluster.cancel(2) == a.Cancelled(JobId(2), already_ended=False)
    assert cluster.shown(2) is JobState.CANCELLED
    assert not cluster.state.held
    assert not check(cluster.state)


def test_the_hold_is_in_the_journal() -> None:
    cluster = busy()
    cluster.change(2, hold=True, reason="data")
    cluster.change(2, priority=80)
    job = cluster.replayed().jobs[JobId(2)]
    assert job.hold is not None
    assert (job.hold.user, job.hold.reason) == ("ada", "data")
    assert job.revision == cluster.job(2).revision
    assert (job.spec.priority, job.as_submitted.priority) == (80, 50)


def test_on_a_full_disk_nothing_is_held_changed_or_signalled() -> None:
    cluster = busy()
    cluster.run_gang(1)
    cluster.turn(s.DiskSpaceChecked("the disk is full"))
    for answer in (cluster.change(2, hold=True), cluster.change(2, priority=1)):
        assert isinstance(answer, a.Declined)
        assert answer.code == a.DISK_FULL
    assert cluster.change(2, priority=50) == SAME
    cluster.turn(s.SignalReceived(a.RequestId(99), JobId(1), "ada", "SIGUSR1"))
    declined = cluster.answers[99]
    assert isinstance(declined, a.Declined)
    assert declined.code == a.DISK_FULL
    assert cluster.cancel(2) == a.Cancelled(JobId(2), already_ended=False)


OLD = (
    """{"type":"JobSubmitted","job":1,"user":"ada","spec":{"name":"x","run":{"type":"argv",
    "argv":["x.py"]},
    "time_limit_s":60.0,"stop":{"warn":{"signal":"SIGUSR1","before_s":9.0}}}}""",
    """{"type":"AttemptPlaced","job":1,"attempt":1,"nodes":["n0"]}""",
    """{"type":"AttemptWarned","job":1,"attempt":1}""",
)
"""Facts as the release before this one wrote them."""


def test_an_old_journal_is_read() -> None:
    state = State()
    register = cf.NodeRegistered(NodeName("n0"), "id", "boot-n0", "0.0.9", INVENTORY)
    apply(state, register, 0.0)
    for text in OLD:
        apply(state, msgspec.json.decode(text, type=f.Fact), 0.0)
    job = state.jobs[JobId(1)]
    (attempt,) = job.attempts
    assert (job.rerun_of, job.hold, attempt.placement_reason) == (None, None, "")
    # The warning had the number 1 on its nodes; what is sent next must be another one.
    assert [(it.number, it.name, it.late) for it in attempt.signals] == [(1, "SIGUSR1", True)]
    apply(state, f.SignalRequested(JobId(1), 1, "ada", "SIGUSR2"), 0.0)
    assert attempt.signals[-1].number == 2


def test_a_job_that_failed_meanwhile_is_not_held_by_its_timer() -> None:
    """The pause of a retry that was held away ends later, and means nothing then."""
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(retry=Retry(user=2, backoff_s=30.0)))
    (name,) = cluster.run_gang(1)
    cluster.finish(name, code=7)
    cluster.change(1, hold=True)
    cluster.change(1, hold=False)
    again = task(1, 2, 0)
    cluster.run_gang(1, 2)
    cluster.end(again, ExitStatus(7))
    cluster.clean(again, exit=ExitStatus(7))
    assert cluster.shown(1) is JobState.RETRYING

"""Nodes that are taken out of service: what becomes of the jobs there, and of those that wait."""

from __future__ import annotations

import pytest

from muster.protocol.link.control_channel import Heartbeat, NodeChanges, StopTask
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.traffic import PortHealth
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Rendezvous, Retry, Stop
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.node import AdminState
from orchestrator.core.views.display import node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec, task


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.join("a", "b")
    return cluster


def started_again(cluster: Cluster) -> Cluster:
    return Cluster(state=cluster.replayed())


def test_a_drained_node_gets_no_job(cluster: Cluster) -> None:
    assert cluster.drain("a") == a.NodeServiceChanged(cluster.node("a").name, anything=True)
    cluster.submit(spec())
    cluster.submit(spec("more"))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["b"]
    assert cluster.shown(2) is JobState.QUEUED
    cluster.resume("a")
    assert [t.node for t in cluster.job(2).attempts[0].tasks] == ["a"]


def test_running_jobs_go_on_before_the_node_is_drained(cluster: Cluster) -> None:
    cluster.submit(spec(nodes=2))
    tasks = cluster.run_gang(1)
    cluster.drain("a")
    assert cluster.node("a").admin is AdminState.DRAINING
    assert cluster.shown(1) is JobState.RUNNING
    for name in tasks:
        cluster.finish(name)
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert cluster.node("a").admin is AdminState.DRAINED


def test_a_gang_in_preparation_is_rolled_back_at_no_cost(cluster: Cluster) -> None:
    cluster.submit(spec(retry=Retry(infra=0)))
    cluster.drain("a")
    cluster.clean(task(1, 1, 0))
    cluster.pass_time(1)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["b"]
    assert cluster.job(1).infra_used == 0


def test_at_the_deadline_jobs_are_asked_to_end_and_begin_elsewhere(cluster: Cluster) -> None:
    cluster.submit(spec(stop=Stop(grace_s=7.0), retry=Retry(infra=0)))
    (running,) = cluster.run_gang(1)
    cluster.drain("a", deadline_s=7200.0)
    cluster.beat(7100)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(110)
    assert cluster.commands("a", StopTask) == [StopTask(running, "SIGTERM", 7.0)]
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.DRAINED
    assert cause.text == "a is drained by ana: bad DIMM"
    cluster.clean(running, exit=ExitStatus(signal=15))
    cluster.pass_time(1)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["b"]
    assert cluster.node("a").admin is AdminState.DRAINED


def test_a_deadline_survives_a_restart_but_for_a_sixteenth(cluster: Cluster) -> None:
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.drain("a", deadline_s=160.0)
    cluster.beat(85)
    again = started_again(cluster)
    drain = again.node("a").drain
    assert drain is not None
    assert drain.left_s == 80.0
    again.pass_time(79)
    assert again.job(1).attempts[0].cause is None
    again.pass_time(2)
    cause = again.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.DRAINED


def test_now_kills_and_shortens_a_stop_that_has_begun(cluster: Cluster) -> None:
    cluster.submit(spec(stop=Stop(grace_s=600.0)))
    (running,) = cluster.run_gang(1)
    cluster.drain("a", deadline_s=1.0)
    cluster.pass_time(2)
    cluster.drain("a", deadline_s=0.0)
    assert [c.force for c in cluster.commands("a", StopTask)] == [False, True]  # type: ignore[union-attr]
    cluster.clean(running, exit=ExitStatus(signal=9))
    cluster.pass_time(1)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["b"]


def test_a_job_that_is_cancelled_as_it_leaves_does_not_begin_again(cluster: Cluster) -> None:
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.drain("a", deadline_s=0.0)
    cluster.cancel(1)
    cluster.clean(running)
    assert cluster.shown(1) is JobState.CANCELLED


def test_an_elastic_gang_goes_on_without_the_node() -> None:
    cluster = Cluster()
    cluster.join("a", "b", "c")
    cluster.submit(spec(nodes=2, max_nodes=3, rendezvous=Rendezvous.C10D))
    tasks = cluster.run_gang(1)
    cluster.drain("c", deadline_s=0.0)
    assert cluster.shown(1) is JobState.RUNNING
    assert cluster.commands("c", StopTask) == [StopTask(tasks[2], "SIGTERM", 0.0, force=True)]
    cluster.clean(tasks[2], exit=ExitStatus(signal=9))
    cluster.pass_time(5)
    assert cluster.node("c").admin is AdminState.DRAINED
    assert len(cluster.job(1).attempts[0].present) == 2
    assert not check(cluster.state)


def test_a_node_that_joins_a_gang_and_is_drained_leaves_it_before_it_starts() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2, max_nodes=3, rendezvous=Rendezvous.C10D))
    cluster.run_gang(1)
    cluster.join("c")
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["a", "b", "c"]
    cluster.drain("c")
    joined = cluster.job(1).attempts[0].tasks[2]
    assert joined.left
    assert cluster.shown(1) is JobState.RUNNING


def test_a_second_drain_changes_the_first_and_the_same_changes_nothing(cluster: Cluster) -> None:
    cluster.drain("a")
    assert cluster.drain("a") == a.NodeServiceChanged(cluster.node("a").name, anything=False)
    cluster.drain("a", "new board", deadline_s=60.0)
    drain = cluster.node("a").drain
    assert drain is not None
    assert (drain.reason, drain.deadline_s) == ("new board", 60.0)
    cluster.submit(spec())
    cluster.drain("a", "no hurry")
    cluster.pass_time(100)
    drain = cluster.node("a").drain
    assert drain is not None
    assert drain.left_s is None


def test_the_timer_of_an_earlier_drain_says_nothing_of_a_later_one(cluster: Cluster) -> None:
    cluster.drain("a", deadline_s=16.0)
    (early,) = [timer for timer in cluster.timers if timer.kind is a.TimerKind.DRAIN]
    cluster.drain("a", deadline_s=1600.0)
    cluster.turn(s.TimerFired(early))
    drain = cluster.node("a").drain
    assert drain is not None
    assert drain.left_s == 1600.0


def test_a_drain_survives_a_restart_and_a_new_connection(cluster: Cluster) -> None:
    cluster.drain("a", "bad DIMM")
    again = started_again(cluster)
    assert again.node("a").drain == cluster.node("a").drain
    again.join("a", "b")
    again.leave("a")
    again.join("a")
    again.submit(spec(nodes=2))
    assert again.shown(1) is JobState.QUEUED


def test_nobody_waits_for_a_drained_node_where_one_that_failed_would_do(cluster: Cluster) -> None:
    """A lost one is the same: nobody knows when it will be back."""
    cluster.submit(spec())
    cluster.refuse(task(1, 1, 0), "disk_broken", node_fault=True)
    cluster.clean(task(1, 1, 0))
    cluster.drain("b")
    cluster.beat(5)
    assert cluster.job(1).attempts[-1].tasks[0].node == "a"


def test_user_time_and_reason_of_a_drain_are_shown(cluster: Cluster) -> None:
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.drain("a", deadline_s=10800.0)
    cluster.drain("b")
    cluster.submit(spec("waits", nodes=2))
    cluster.beat(7230)
    busy, idle = (node_view(cluster.node(name), cluster.now) for name in ("a", "b"))
    assert idle.state.code == idle.admin == "drained"
    assert idle.state.text == "drained by ana since 2h: bad DIMM"
    assert busy.state.code == busy.admin == "draining"
    assert busy.state.text.startswith("runs job 1; drained by ana since 2h: bad DIMM; ends running")
    assert busy.drain is not None
    assert busy.drain.ends_at is not None
    assert not busy.drain.quarantine
    explained = explain(cluster.state, cluster.job(2), cluster.now)
    assert {v.reason.text for v in explained.nodes} == {"is drained by ana since 2h: bad DIMM"}
    assert explained.text == (
        "needs 2 nodes, 0 free: a is drained by ana: bad DIMM; b is drained by ana: bad DIMM"
    )
    assert explained.forecast == "unknown: waits for a drained node to be resumed: a (ana), b (ana)"
    cluster.leave("b")
    away = node_view(cluster.node("b"), cluster.now)
    assert away.state.code == "unreachable"
    assert "drained by ana since 2h: bad DIMM" in away.state.text


def test_resume_is_refused_while_something_is_wrong(cluster: Cluster) -> None:
    cluster.drain("a")
    cluster.leave("a")
    declined = cluster.resume("a")
    assert isinstance(declined, a.Declined)
    assert declined.code == "check_failed"
    assert "is not connected" in declined.text
    assert "--no-check" in declined.hint
    assert cluster.resume("a", check=False) == a.NodeServiceChanged(
        cluster.node("a").name, anything=True
    )
    assert cluster.node("a").in_service
    assert cluster.resume("a") == a.NodeServiceChanged(cluster.node("a").name, anything=False)


def test_the_check_names_all_that_it_finds(cluster: Cluster) -> None:
    sick = GpuDevice(pci="0000:01:00.0", uuid="", fault="fell off the bus")
    cluster.join("c", devices=(sick,), gpus=0)
    session = cluster.node("c").session
    assert session is not None
    down = PortHealth("mlx5_0:1", down=True, state="DOWN")
    beat = Heartbeat(
        cluster.mono, wall_s=cluster.now.wall + 3600, changes=NodeChanges(ports=(down,))
    )
    cluster.turn(s.ReportReceived(session, beat))
    cluster.drain("c")
    declined = cluster.resume("c")
    assert isinstance(declined, a.Declined)
    for problem in ("1h ahead", "GPU 0000:01:00.0: fell off the bus", down.text):
        assert problem in declined.text


def test_remains_of_a_job_must_be_gone_first(cluster: Cluster) -> None:
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.drain("a")
    # A running job does not prevent resuming: the drain is undone.
    assert cluster.resume("a") == a.NodeServiceChanged(cluster.node("a").name, anything=True)
    cluster.drain("a", deadline_s=0.0)
    declined = cluster.resume("a")
    assert isinstance(declined, a.Declined)
    assert "processes or files of job 1 are still there" in declined.text
    cluster.clean(running)
    assert isinstance(cluster.resume("a"), a.NodeServiceChanged)


def test_a_node_that_nobody_knows() -> None:
    cluster = Cluster()
    for answer in (cluster.drain("x"), cluster.resume("x")):
        assert isinstance(answer, a.Declined)
        assert answer.code == a.UNKNOWN_NODE


def test_a_gang_that_had_ended_is_not_stopped_again(cluster: Cluster) -> None:
    cluster.submit(spec())
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(0))
    cluster.drain("a", deadline_s=5.0)
    cluster.beat(10)
    cluster.clean(name, exit=ExitStatus(0))
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert cluster.state.task(name) is not None
    assert cluster.job(1).attempts[0].tasks[0].state is TaskState.CLEANED


def test_on_a_full_disk_each_node_is_drained_once_and_nothing_else_is_recorded(
    cluster: Cluster,
) -> None:
    cluster.join("c")
    cluster.leave("c")
    cluster.drain("b")
    cluster.turn(s.DiskSpaceChecked("/var is full"))
    assert cluster.drain("a") == a.NodeServiceChanged(cluster.node("a").name, anything=True)
    before = len(cluster.facts)
    asked = [cluster.drain("a", reason="another"), cluster.drain("a", deadline_s=60.0)]
    asked += [cluster.resume("a"), cluster.resume("b"), cluster.remove("c")]
    for answer in asked:
        assert isinstance(answer, a.Declined)
        assert answer.code == a.DISK_FULL
    assert len(cluster.facts) == before
    cluster.turn(s.DiskSpaceChecked(""))
    assert cluster.resume("a") == a.NodeServiceChanged(cluster.node("a").name, anything=True)

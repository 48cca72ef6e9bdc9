"""Gangs whose members keep each other alive: what proves the task of a silent member over."""

from __future__ import annotations

from typing import Any, Final

import pytest

from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ForgetTask,
    Hello,
    NodeObservations,
    StopTask,
    TaskReport,
)
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.leases import KILL_S, margin_s
from orchestrator.core.model.limits import Limits
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import INVENTORY, Cluster, prepared, spec

L: Final = Limits().lease_s
WAIT_S: Final = L + margin_s(L)
TERM: Final = ExitStatus(signal=15)


def gang(**more: Any) -> tuple[Cluster, TaskId, TaskId]:
    """A gang of n0 and n1 that runs."""
    cluster = Cluster()
    cluster.join("n0", "n1", "n2")
    wanted = {"placement": {"include": ["n0", "n1"]}, "retry": Retry(infra=0), **more}
    cluster.submit(spec(nodes=2, **wanted))
    launcher, worker = cluster.run_gang(1, peer_port=7079)
    return cluster, launcher, worker


def ends(cluster: Cluster, task: TaskId, *, confirms: bool) -> None:
    said: dict[str, Any] = {"prepared": prepared(), "exit": TERM, "stopped_by": "stop"}
    cluster.report(task, TaskState.EXITED, **said)
    cluster.report(task, TaskState.CLEANED, **said, stop_stored=confirms)


def hello(cluster: Cluster, name: str, boot: str, *tasks: TaskReport) -> None:
    cluster.sessions += 1
    who = (NodeName(name), f"id-{name}", boot, "0.1.0")
    said = Hello(*who, NodeObservations(INVENTORY), tasks, protocol_max=PROTOCOL_MAX)
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), said, "127.0.0.1"))


def other_machine(cluster: Cluster, name: str) -> SessionId:
    """Another machine says hello under the name of a node, with an empty state folder."""
    cluster.sessions += 1
    session = SessionId(cluster.sessions)
    who = (NodeName(name), "another agent", "another boot", "0.1.0")
    said = Hello(*who, NodeObservations(INVENTORY), protocol_max=PROTOCOL_MAX)
    cluster.turn(s.HelloReceived(session, said, "127.0.0.9"))
    return session


def stops(cluster: Cluster, name: str) -> int:
    return len(cluster.commands(name, StopTask))


def test_a_gang_with_a_silent_member_runs_on() -> None:
    cluster, _, _ = gang()
    cluster.leave("n1")
    cluster.beat(86_400.0)
    assert cluster.shown(1) is JobState.RUNNING
    text = job_view(cluster.state, cluster.job(1), cluster.now).reason.text
    assert "after another node of its gang has confirmed a stop" in text


def test_a_silent_member_is_over_a_lease_after_another_has_confirmed_its_stop() -> None:
    cluster, launcher, _ = gang()
    cluster.leave("n1")
    cluster.beat(5000.0)
    cluster.cancel(1)
    ends(cluster, launcher, confirms=True)
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.CANCELLED
    assert check(cluster.state) == []


def test_an_end_alone_is_no_confirmation_and_is_asked_for_one() -> None:
    """A node may vouch as long as it holds its task."""
    cluster, launcher, _ = gang()
    cluster.leave("n1")
    cluster.cancel(1)
    before = stops(cluster, "n0")
    ends(cluster, launcher, confirms=False)
    assert stops(cluster, "n0") > before
    cluster.beat(5000.0)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.report(launcher, TaskState.CLEANED, stop_stored=True)
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.CANCELLED


def test_a_member_that_ended_before_the_other_fell_silent_is_asked_too() -> None:
    cluster, launcher, _ = gang()
    cluster.cancel(1)
    ends(cluster, launcher, confirms=False)
    before = stops(cluster, "n0")
    cluster.leave("n1")
    assert stops(cluster, "n0") == before + 1


def test_a_member_that_has_ended_is_kept_until_the_others_have() -> None:
    """Its node vouches for those that still run, also while the coordinator is away."""
    cluster, launcher, worker = gang()
    cluster.finish(worker)
    ended = TaskReport(worker, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0))
    cluster.leave("n1")
    cluster.join("n1", tasks=(ended,))
    assert not cluster.commands("n1", ForgetTask)
    cluster.finish(launcher)
    assert cluster.commands("n0", ForgetTask) == [ForgetTask(launcher)]
    assert cluster.commands("n1", ForgetTask) == [ForgetTask(worker)]
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_its_own_confirmation_is_not_another_s() -> None:
    cluster, launcher, worker = gang()
    cluster.cancel(1)
    cluster.report(worker, TaskState.STARTED, prepared=prepared(), stop_stored=True)
    cluster.leave("n1")
    ends(cluster, launcher, confirms=False)
    cluster.leave("n0")
    cluster.beat(86_400.0)
    assert cluster.shown(1) is JobState.STOPPING


@pytest.mark.parametrize("lease_s", [15.0, 300.0, 2500.0, 7200.0, 30 * 86_400.0])
def test_the_margin_outlasts_clocks_that_part_by_two_percent_each(lease_s: float) -> None:
    node, coordinator = 0.98, 1.02
    assert (lease_s + KILL_S) / node + 2 < (lease_s + margin_s(lease_s)) / coordinator


@pytest.mark.parametrize("after", ["silence", "a restart of the coordinator"])
def test_another_machine_of_the_name_confirms_nothing_for_the_first(after: str) -> None:
    """The first one vouches as long as it holds its task, even an ended one."""
    cluster, _, worker = gang()
    cluster.leave("n0")
    said: dict[str, Any] = {"prepared": prepared(), "exit": ExitStatus(1)}
    cluster.report(worker, TaskState.EXITED, **said)
    cluster.report(worker, TaskState.CLEANED, **said)
    cluster.leave("n1")
    if after != "silence":
        facts, mono = cluster.facts, cluster.mono
        cluster = Cluster(cluster.replayed(), mono=mono)
        cluster.facts[:0] = facts
    cluster.beat(5000.0)
    other_machine(cluster, "n1")
    assert cluster.refused == ["duplicate_name"]
    assert cluster.node("n1").agent_id == "id-n1"
    asked = s.LostReceived(a.RequestId(1000), NodeName("n1"), "ana")
    cluster.turn(asked)
    assert cluster.answers[asked.request] == a.NodeServiceChanged(NodeName("n1"), anything=True)
    session = other_machine(cluster, "n1")
    assert cluster.node("n1").session == session
    cluster.turn(s.ReportReceived(session, TaskReport(worker, TaskState.CLEANED, stop_stored=True)))
    cluster.beat(WAIT_S + 2)
    assert cluster.job(1).current is None
    assert check(cluster.state) == []


def test_the_boot_of_another_member_counts_as_its_confirmation() -> None:
    cluster, _, _ = gang()
    cluster.leave("n0")
    cluster.leave("n1")
    cluster.beat(5000.0)
    hello(cluster, "n0", "another")
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST


def test_the_boot_of_a_member_that_was_declared_lost_counts_as_well() -> None:
    cluster, launcher, _ = gang()
    cluster.leave("n0")
    cluster.leave("n1")
    cluster.declare_lost("n0")
    cluster.beat(5000.0)
    hello(cluster, "n0", "another", TaskReport(launcher, TaskState.CLEANED))
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST


def test_a_declared_loss_of_another_member_is_no_confirmation() -> None:
    """Nothing runs there, says an operator; its agent may still vouch."""
    cluster, _, _ = gang()
    cluster.leave("n0")
    cluster.leave("n1")
    cluster.declare_lost("n0")
    cluster.beat(86_400.0)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.declare_lost("n1")
    assert cluster.shown(1) is JobState.LOST


def test_a_new_coordinator_asks_again_and_counts_from_the_answer() -> None:
    before, launcher, _ = gang()
    before.leave("n1")
    before.cancel(1)
    ends(before, launcher, confirms=True)
    cluster = Cluster(state=before.state, mono=5.0)
    cluster.beat(5000.0)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.join("n0")
    assert stops(cluster, "n0") == 1
    session = cluster.node("n0").session
    assert session is not None
    gone = TaskReport(launcher, TaskState.CLEANED, stop_stored=True)
    cluster.turn(s.ReportReceived(session, gone))
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.CANCELLED


def test_a_lease_of_the_job_holds_whatever_its_members_say() -> None:
    cluster, _, _ = gang(lease_s=60.0)
    cluster.leave("n1")
    cluster.beat(60 + margin_s(60) + 1)
    assert cluster.shown(1) is JobState.STOPPING
    assert cluster.state.jobs[cluster.job(1).id].attempts[0].tasks[1].state is TaskState.LOST


def test_before_its_gate_a_member_lives_by_answers_alone() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, retry=Retry(infra=0)))
    launcher, worker = (task.id for task in cluster.job(1).attempts[0].tasks)
    cluster.prepare(worker, peer_port=7079)
    cluster.leave("n1")
    cluster.cancel(1)
    cluster.report(launcher, TaskState.CLEANED)
    cluster.beat(WAIT_S - 1)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.CANCELLED

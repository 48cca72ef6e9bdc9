"""Silent nodes: leases of jobs, a coordinator that was stopped, all agents gone at once."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ForgetTask,
    Heartbeat,
    HeartbeatAck,
    Hello,
    NodeObservations,
    PrepareTask,
    StopTask,
    TaskReport,
)
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.leases import margin_s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.views.display import job_view, node_seen
from tests.orchestrator.core.playbook import INVENTORY, Cluster, prepared, spec, task

LIMITS = Limits()
WELL = ExitStatus(0)
LEASE_S = LIMITS.lease_s + margin_s(LIMITS.lease_s)


def of(count: int, **limits: float) -> Cluster:
    cluster = Cluster(limits=Limits(**limits))  # type: ignore[arg-type]
    cluster.join(*(f"n{number}" for number in range(count)))
    return cluster


def placed(cluster: Cluster, *nodes: str, **more: Any) -> list[TaskId]:
    """A job that runs on these nodes; returns its tasks."""
    cluster.submit(
        spec(nodes=len(nodes), placement={"include": list(nodes)}, retry=Retry(infra=0), **more)
    )
    return cluster.run_gang(max(cluster.state.jobs))


def hello(cluster: Cluster, name: str, *tasks: TaskReport, boot: str = "") -> None:
    cluster.sessions += 1
    said = Hello(
        NodeName(name),
        f"id-{name}",
        boot or f"boot-{name}",
        "0.1.0",
        NodeObservations(INVENTORY),
        tasks,
        protocol_max=PROTOCOL_MAX,
    )
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), said, "127.0.0.1"))


# --- leases of jobs ---------------------------------------------------------------------------


def test_the_silence_of_a_node_never_ends_a_gang_of_one_without_a_lease() -> None:
    cluster = of(2)
    placed(cluster, "n0")
    (command,) = cluster.commands("n0", PrepareTask)
    assert isinstance(command, PrepareTask)
    assert command.lease_s is None
    cluster.leave("n0")
    cluster.beat(86_400.0)
    assert cluster.shown(1) is JobState.RUNNING
    assert cluster.node("n0").link is LinkState.LOST
    seen = node_seen(cluster.state, cluster.node("n0"), cluster.now).state.text
    assert seen == "lost; its jobs may continue"
    assert job_view(cluster.state, cluster.job(1), cluster.now).reason.text.endswith(
        "the task on n0 counts as ended once it is back, or after: muster node lost n0"
    )
    hello(cluster, "n0", TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()))
    assert cluster.shown(1) is JobState.RUNNING


def test_an_operator_ends_it_and_only_then_the_next_attempt_begins() -> None:
    cluster = of(2)
    cluster.submit(spec(retry=Retry(infra=1)))
    cluster.run_gang(1)
    (first,) = (t.node for t in cluster.job(1).attempts[0].tasks)
    cluster.leave(first)
    cluster.beat(86_400.0)
    assert cluster.job(1).last_attempt == 1
    cluster.declare_lost(first)
    (fact,) = (it for it in cluster.facts if isinstance(it, f.TaskLost))
    assert fact.proof is TaskProof.DECLARED
    assert cluster.node(first).link is LinkState.LOST
    cluster.beat(60)
    assert cluster.job(1).last_attempt == 2
    assert check(cluster.state) == []


@pytest.mark.parametrize(("lease_s", "wait_s"), [(60.0, 77.4), (3600.0, 3761.2)])
def test_a_job_with_a_lease_ends_after_the_lease_and_the_margin(
    lease_s: float, wait_s: float
) -> None:
    cluster = of(2)
    placed(cluster, "n0", lease_s=lease_s)
    cluster.leave("n0")
    cluster.beat(wait_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    seen = node_seen(cluster.state, cluster.node("n0"), cluster.now).state.text
    assert seen.endswith("; its jobs may continue for 1 s")
    text = job_view(cluster.state, cluster.job(1), cluster.now).reason.text
    assert f"in 1 s (lease {lease_s:g} s and margin {wait_s - lease_s:g} s" in text
    assert text.endswith("or after: muster node lost n0")
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST
    (fact,) = (it for it in cluster.facts if isinstance(it, f.TaskLost))
    assert fact.proof is TaskProof.LEASE
    assert check(cluster.state) == []


def test_the_lease_is_that_of_the_placement_whatever_a_later_process_is_set_to() -> None:
    before = of(3, lease_s=600.0)
    placed(before, "n0", "n1")
    cluster = Cluster(state=before.state, mono=5.0, limits=Limits(lease_s=15.0))
    cluster.beat(600)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(60)
    assert cluster.shown(1) is JobState.LOST


def test_nodes_whose_tasks_are_over_are_free_while_another_is_waited_for() -> None:
    cluster = of(3)
    gang = placed(cluster, "n0", "n1")
    cluster.leave("n1")
    cluster.cancel(1)
    cluster.end(gang[0], ExitStatus(None, 15), "cancel")
    cluster.clean(gang[0])
    assert cluster.shown(1) is JobState.STOPPING
    assert not cluster.node("n0").holders
    assert cluster.node("n1").holders
    cluster.submit(spec(placement={"include": ["n0"]}))
    assert [t.node for t in cluster.job(2).attempts[0].tasks] == ["n0"]
    assert check(cluster.state) == []


def test_a_node_is_told_of_it() -> None:
    cluster = of(1)
    placed(cluster, "n0", lease_s=60.0)
    (command,) = cluster.commands("n0", PrepareTask)
    assert isinstance(command, PrepareTask)
    assert command.lease_s == 60.0


def test_a_lease_is_never_so_short_that_a_lost_heartbeat_ends_the_job() -> None:
    cluster = of(1, heartbeat_s=10.0)
    placed(cluster, "n0", lease_s=15.0)
    (command,) = cluster.commands("n0", PrepareTask)
    assert isinstance(command, PrepareTask)
    assert command.lease_s == 30.0


# --- a coordinator that was stopped -----------------------------------------------------------


@pytest.mark.parametrize(
    ("away_s", "then"), [(60.0, LinkState.SUSPECT), (100_000.0, LinkState.LOST)]
)
def test_a_coordinator_that_was_stopped_judges_nobody_before_a_full_round(
    away_s: float, then: LinkState
) -> None:
    cluster = of(3)
    placed(cluster, "n0")
    sessions = [cluster.node(f"n{number}").session for number in range(3)]
    cluster.mono += away_s
    cluster.pass_time(LIMITS.silence_s - 1)
    assert [cluster.node(f"n{number}").session for number in range(3)] == sessions
    # Two of them sent something meanwhile, which arrives only now.
    for session in sessions[:2]:
        assert session is not None
        cluster.turn(s.ReportReceived(session, Heartbeat(1.0)))
    cluster.beat(2)
    assert [cluster.node(f"n{number}").link for number in range(3)] == [
        LinkState.CONNECTED,
        LinkState.CONNECTED,
        then,
    ]
    assert cluster.shown(1) is JobState.RUNNING


def test_leases_that_ended_while_it_was_stopped_are_judged_a_round_later() -> None:
    cluster = of(3)
    placed(cluster, "n0", lease_s=300.0)
    cluster.leave("n0")
    cluster.mono += LEASE_S + 100
    cluster.beat(LIMITS.silence_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST


# --- most agents gone at once -----------------------------------------------------------------


def test_nothing_is_called_lost_if_all_agents_vanish_at_once() -> None:
    cluster = of(4)
    placed(cluster, "n0")
    placed(cluster, "n1")
    for number in range(4):
        cluster.leave(f"n{number}")
    cluster.beat(86_400.0)
    assert [cluster.shown(job) for job in (1, 2)] == [JobState.RUNNING] * 2
    assert not any(isinstance(fact, f.TaskLost) for fact in cluster.facts)


def test_a_task_that_succeeded_meanwhile_has_succeeded() -> None:
    cluster = of(3)
    (one,) = placed(cluster, "n0")
    for number in range(3):
        cluster.leave(f"n{number}")
    cluster.pass_time(LEASE_S + 600)
    hello(
        cluster, "n0", TaskReport(one, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0))
    )
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_a_new_process_waits_for_the_nodes_of_the_last_one() -> None:
    before = of(3)
    for number in range(2):
        placed(before, f"n{number}")
    cluster = Cluster(state=before.state, mono=5.0)
    cluster.pass_time(86_400.0)
    assert [cluster.shown(job) for job in (1, 2)] == [JobState.RUNNING] * 2


# --- boots and stale agents -------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        None,
        TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()),
        TaskReport(task(1, 1, 0), TaskState.CLEANED, prepared=prepared(), stopped_by="shim_lost"),
    ],
)
def test_nothing_outlives_a_boot(report: TaskReport | None) -> None:
    cluster = of(2)
    placed(cluster, "n0")
    cluster.leave("n0")
    hello(cluster, "n0", *([] if report is None else [report]), boot="another")
    cause = cluster.cause(1)
    assert cause.code is CauseCode.NODE_LOST
    assert "n0 was lost: it rebooted" in cause.text
    if report is not None:
        cleaned = report.state is TaskState.CLEANED
        assert cluster.commands("n0", ForgetTask if cleaned else StopTask)
    assert check(cluster.state) == []


def test_an_exit_that_is_on_the_nodes_disk_is_heard_after_a_boot() -> None:
    cluster = of(1)
    (running,) = placed(cluster, "n0")
    well = TaskReport(running, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0))
    cluster.leave("n0")
    hello(cluster, "n0", well, boot="another")
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_unknown_is_not_lost() -> None:
    cluster = of(3)
    placed(cluster, "n0")
    cluster.pass_time(5)
    cluster.leave("n0")
    cluster.beat(35)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.state is JobState.RUNNING
    assert view.reason.code == "unreachable"
    assert view.reason.text == (
        "n0 unreachable for 40 s, job presumed running; the task on n0 counts as ended once it is "
        "back, or after: muster node lost n0"
    )
    assert cluster.node("n0").link is LinkState.SUSPECT


def test_steps_of_the_wall_clock_change_nothing() -> None:
    cluster = of(3)
    placed(cluster, "n0")
    for wall_s in (-86_400.0, 86_400.0, 1e9):
        session = cluster.node("n0").session
        assert session is not None
        cluster.turn(s.ReportReceived(session, Heartbeat(cluster.mono, wall_s=wall_s)))
        assert cluster.commands("n0", HeartbeatAck)
        cluster.beat(20)
    assert cluster.shown(1) is JobState.RUNNING
    assert JobId(1) in cluster.state.running

"""Silent nodes: leases of jobs, a coordinator that was stopped, most agents gone at once."""

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
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.nodes.liveness import mass_outage_text
from orchestrator.core.views.display import job_view, node_seen, node_view
from tests.orchestrator.core.playbook import INVENTORY, Cluster, prepared, spec, task

LIMITS = Limits()
LEASE_S = LIMITS.lease_s + LIMITS.lease_margin_s


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


def test_a_job_says_how_long_it_goes_on_where_nobody_hears_it() -> None:
    cluster = of(4)
    placed(cluster, "n0", lease_s=60.0)
    placed(cluster, "n1", lease_s=3600.0)
    for name in ("n0", "n1"):
        cluster.leave(name)
    cluster.beat(60 + LIMITS.lease_margin_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    seen = {
        name: node_seen(cluster.state, cluster.node(name), cluster.now, LIMITS).state.text
        for name in ("n0", "n1")
    }
    assert seen == {
        "n0": "unreachable; its jobs may continue for 1 s",
        "n1": "unreachable; its jobs may continue for 3541 s",
    }
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST
    assert cluster.node("n0").link is LinkState.SUSPECT
    cluster.beat(LEASE_S)
    assert cluster.node("n0").link is LinkState.LOST
    assert cluster.shown(2) is JobState.RUNNING
    cluster.beat(3600 - LEASE_S)
    assert cluster.shown(2) is JobState.LOST
    assert cluster.node("n1").link is LinkState.LOST
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
    # Two of them have said something meanwhile, of which it hears only now.
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
    placed(cluster, "n0")
    cluster.leave("n0")
    cluster.mono += LEASE_S + 100
    cluster.beat(LIMITS.silence_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST


# --- most agents gone at once -----------------------------------------------------------------


def test_where_most_agents_vanish_at_once_nothing_is_called_lost() -> None:
    cluster = of(4)
    placed(cluster, "n0", "n1")
    for name in ("n0", "n1", "n2"):
        cluster.leave(name)
    cluster.beat(LEASE_S + 600)
    assert cluster.shown(1) is JobState.RUNNING
    text = job_view(cluster.state, cluster.job(1), cluster.now).reason.text
    assert "presumed running; 3 of 4 agents fell silent at once" in text
    assert "the coordinator may be cut off" in text
    view = node_view(cluster.node("n2"), cluster.now, mass_outage_text(cluster.state))
    assert "none of them is declared lost before 30m" in view.state.text
    assert not any(isinstance(fact, f.TaskLost) for fact in cluster.facts)


def test_what_ended_well_meanwhile_has_ended_well() -> None:
    cluster = of(3)
    gang = placed(cluster, "n0", "n1")
    for name in ("n0", "n1", "n2"):
        cluster.leave(name)
    cluster.pass_time(LEASE_S + 600)
    for number, one in enumerate(gang):
        well = TaskReport(
            one, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(0), listening=True
        )
        hello(cluster, f"n{number}", well)
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert cluster.state.mass_outage is None


def test_it_judges_again_once_most_are_back_a_round_later() -> None:
    cluster = of(4)
    placed(cluster, "n0")
    for name in ("n0", "n1", "n2"):
        cluster.leave(name)
    cluster.beat(LEASE_S + 60)
    assert cluster.state.mass_outage is not None
    hello(cluster, "n1")
    hello(cluster, "n2")
    assert cluster.state.mass_outage is None
    cluster.beat(LIMITS.silence_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.LOST


def test_a_mass_outage_does_not_last_for_ever() -> None:
    cluster = of(3)
    placed(cluster, "n0")
    for name in ("n0", "n1", "n2"):
        cluster.leave(name)
    cluster.pass_time(LEASE_S + LIMITS.mass_outage_s - 1)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.pass_time(2)
    assert cluster.shown(1) is JobState.LOST
    hello(cluster, "n1")
    assert cluster.state.mass_outage is None


def test_nodes_that_never_come_back_do_not_prolong_the_mass_outage() -> None:
    """Nothing would be judged by the neighbours' word, and the next outage would have no brake."""
    cluster = of(7)
    for name in ("n0", "n1", "n2", "n3"):
        cluster.leave(name)
    cluster.beat(LEASE_S + LIMITS.mass_outage_s + 2 * LIMITS.silence_s)
    assert [cluster.node(f"n{at}").link for at in range(4)] == [LinkState.LOST] * 4
    assert cluster.state.mass_outage is None
    assert mass_outage_text(cluster.state) == ""
    placed(cluster, "n5", "n6")
    cluster.leave("n5")
    cluster.leave("n6")
    cluster.beat(LEASE_S + 60)
    assert cluster.state.mass_outage is not None
    assert cluster.shown(1) is JobState.RUNNING


def test_nodes_that_are_removed_do_not_prolong_the_mass_outage() -> None:
    cluster = of(5)
    for name in ("n0", "n1", "n2"):
        cluster.leave(name)
    cluster.beat(LEASE_S + 60)
    assert cluster.state.mass_outage is not None
    for name in ("n0", "n1"):
        cluster.remove(name)
    assert cluster.state.mass_outage is None


def test_one_node_after_another_is_no_mass_outage() -> None:
    cluster = of(3)
    placed(cluster, "n0")
    cluster.leave("n0")
    cluster.beat(120)
    cluster.leave("n1")
    cluster.beat(LEASE_S)
    assert cluster.shown(1) is JobState.LOST


def test_an_outage_that_a_new_process_finds_is_one_too() -> None:
    before = of(3)
    for number in range(2):
        placed(before, f"n{number}")
    cluster = Cluster(state=before.state, mono=5.0)
    cluster.pass_time(LEASE_S + 60)
    assert cluster.state.mass_outage is not None
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
    assert "n0 was lost: it was booted anew" in cause.text
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
    assert view.reason.text == "n0 unreachable for 40 s, job presumed running"
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

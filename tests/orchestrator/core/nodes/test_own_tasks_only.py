"""Messages of an agent about a task on another node, which change nothing there."""

from __future__ import annotations

from typing import get_args

import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import (
    Heartbeat,
    Hello,
    NodeChanges,
    RankReport,
    Refusal,
    Report,
    StacksReport,
    TaskReport,
)
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.effects import Send
from orchestrator.core.model.state import State
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

VICTIM = task(1, 1, 0)
WELL = ExitStatus(0)
LIES = {
    "cleaned": TaskReport(VICTIM, TaskState.CLEANED, exit=WELL),
    "failed": TaskReport(
        VICTIM,
        TaskState.EXITED,
        prepared=prepared(),
        exit=ExitStatus(1),
        ranks=(RankReport(0, exit=ExitStatus(1), error="a lie"),),
        first_failed=0,
    ),
    "refused": TaskReport(VICTIM, TaskState.EXITED, refusal=Refusal("no_user", "a lie")),
    "runs": TaskReport(VICTIM, TaskState.STARTED, prepared=prepared(), running_s=1e6, terms=9),
    "stopped": TaskReport(VICTIM, TaskState.STARTED, prepared=prepared(), stop_stored=True),
    "unkillable": TaskReport(VICTIM, TaskState.EXITED, survivors=(4242,), doomed=True),
}


def running() -> Cluster:
    """Job 1 runs on n0. n1 has no task, and would lie about that of n0."""
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1))
    (name,) = cluster.run_gang(1)
    assert name == VICTIM
    assert cluster.shown(1) is JobState.RUNNING
    return cluster


def of_victim(state: State) -> str:
    """The job and its node, with all their fields."""
    return repr((state.jobs[JobId(1)], state.nodes[NodeName("n0")]))


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_report_of_another_nodes_task_is_not_heeded(lie: TaskReport) -> None:
    cluster = running()
    before, sent = of_victim(cluster.state), len(cluster.sent[NodeName("n0")])
    intruder = cluster.node("n1").session
    assert intruder is not None
    turned = cluster.turn(s.ReportReceived(intruder, lie))
    assert turned.facts == []
    assert {it.node for it in turned.effects if isinstance(it, Send)} <= {"n1"}
    assert of_victim(cluster.state) == before
    assert len(cluster.sent[NodeName("n0")]) == sent


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_hello_with_another_nodes_task_is_not_heeded(lie: TaskReport) -> None:
    cluster = running()
    cluster.leave("n1")
    before, sent = of_victim(cluster.state), len(cluster.sent[NodeName("n0")])
    cluster.join("n1", tasks=(lie,))
    assert of_victim(cluster.state) == before
    assert cluster.node("n1").drain is None
    assert len(cluster.sent[NodeName("n0")]) == sent


def test_stacks_of_another_nodes_task_are_not_taken() -> None:
    cluster = running()
    before = of_victim(cluster.state)
    intruder = cluster.node("n1").session
    assert intruder is not None
    for number in range(3):
        lie = StacksReport(VICTIM, cluster.state.epoch, number, problem="a lie")
        turned = cluster.turn(s.ReportReceived(intruder, lie))
        assert (turned.facts, turned.effects) == ([], [])
    assert of_victim(cluster.state) == before


def test_a_heartbeat_changes_its_own_node_only() -> None:
    cluster = running()
    before = of_victim(cluster.state)
    cluster.observe("n1", refuses_jobs="a reason", no_torch="another")
    assert cluster.node("n1").refuses_jobs == "a reason"
    assert of_victim(cluster.state) == before


def test_no_kind_of_message_is_left_out() -> None:
    """A new one gets a test here. Heartbeats name no node, and a hello is checked against the
    certificate (test_enrolment.py)."""
    assert set(get_args(Report)) == {Hello, TaskReport, Heartbeat, StacksReport}
    assert "node" not in {*Heartbeat.__struct_fields__, *NodeChanges.__struct_fields__}

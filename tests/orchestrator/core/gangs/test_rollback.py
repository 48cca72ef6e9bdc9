"""A node that refuses rolls all back, whatever the reason and the phase, and others are tried."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Refusal, StartTask, StopTask
from muster.protocol.outcome import CauseCode, Outcome
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.model.limits import Limits, Quarantine
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

IN_ARRANGE = ("name_unresolved", "launcher_unreachable", "hosts_conflict", "no_space")


def gang(known: int, nodes: int, **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(known)))
    cluster.submit(spec(nodes=nodes, **more))
    return cluster


def prepare_all(cluster: Cluster, nodes: int, attempt: int = 1) -> list[TaskId]:
    tasks = [task(1, attempt, rank) for rank in range(nodes)]
    for name in tasks:
        cluster.prepare(name)
    return tasks


def refuse_plan(cluster: Cluster, name: TaskId, code: str) -> None:
    said = Refusal(code, f"{code} here")
    cluster.report(name, TaskState.PREPARED, prepared=prepared(), refusal=said)


def clean_all(cluster: Cluster, tasks: list[TaskId]) -> None:
    for name in tasks:
        cluster.clean(name, prepared=prepared(), stopped_by="kill")


@pytest.mark.parametrize("code", IN_ARRANGE)
def test_a_plan_that_one_node_refuses_starts_nowhere_and_is_tried_on_others(code: str) -> None:
    cluster = gang(4, 3)
    tasks = prepare_all(cluster, 3)
    cluster.report(tasks[0], TaskState.ARRANGED, prepared=prepared())
    refuse_plan(cluster, tasks[1], code)
    cluster.report(tasks[2], TaskState.ARRANGED, prepared=prepared())
    assert cluster.shown(1) is JobState.STOPPING
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node, cause.refusal) == (CauseCode.ARRANGE_FAILED, "n1", code)
    assert cause.text == f"n1 refused: {code} here"
    for rank in range(3):
        assert cluster.commands(f"n{rank}", StopTask)
        assert not cluster.commands(f"n{rank}", StartTask)
    clean_all(cluster, tasks)
    assert cluster.state.ports == {"m1": set()}
    assert all(not node.holders for node in cluster.state.nodes.values())
    cluster.beat(2)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n0", "n2", "n3"]


def test_the_others_are_heard_for_a_moment_and_no_longer() -> None:
    cluster = gang(3, 3)
    tasks = prepare_all(cluster, 3)
    refuse_plan(cluster, tasks[1], "launcher_unreachable")
    assert cluster.shown(1) is JobState.PREPARING
    cluster.pass_time(cluster.limits.refusal_wait_s)
    assert cluster.shown(1) is JobState.STOPPING


@pytest.mark.parametrize("code", ["no_folder", "launcher_unreachable"])
def test_a_refusal_stays_the_reason_after_a_restart(code: str) -> None:
    """And not that the others are slow: they wait for the one that has refused."""
    before = gang(3, 3)
    if code == "no_folder":
        before.refuse(task(1, 1, 0), code)
    else:
        refuse_plan(before, prepare_all(before, 3)[1], code)
    cluster = Cluster(state=before.replayed(), mono=before.mono)
    cluster.pass_time(cluster.limits.refusal_wait_s)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.refusal == code


def test_a_launcher_that_no_worker_reaches_is_at_fault_itself() -> None:
    cluster = gang(4, 3)
    tasks = prepare_all(cluster, 3)
    cluster.report(tasks[0], TaskState.ARRANGED, prepared=prepared())
    for name in tasks[1:]:
        refuse_plan(cluster, name, "launcher_unreachable")
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.node, cause.node_fault) == ("n0", True)
    assert "none of the gang reaches its launcher" in cause.text


def test_a_node_whose_interpreter_dies_at_the_gate_says_so() -> None:
    cluster = gang(3, 2)
    cluster.prepare(task(1, 1, 0))
    died = Refusal("bootstrap_failed", "The launcher was killed by signal 9 before the job")
    cluster.report(task(1, 1, 0), TaskState.CLEANED, prepared=prepared(), refusal=died)
    cluster.prepare(task(1, 1, 1))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.PREPARE_REFUSED, "n0")
    assert "killed by signal 9" in cause.text
    cluster.clean(task(1, 1, 1))
    cluster.beat(2)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1", "n2"]


def test_a_refusal_between_two_gates_stops_what_runs() -> None:
    cluster = gang(2, 2)
    tasks = prepare_all(cluster, 2)
    for name in tasks:
        cluster.report(name, TaskState.ARRANGED, prepared=prepared())
    cluster.report(tasks[0], TaskState.STARTED, prepared=prepared())
    refuse_plan(cluster, tasks[1], "bootstrap_failed")
    assert cluster.shown(1) is JobState.STOPPING
    assert cluster.commands("n0", StopTask)


def test_a_refusal_of_a_single_node_is_not_the_job_s_fault() -> None:
    cluster = gang(3, 1)
    cluster.refuse(task(1, 1, 0), "no_python")
    cluster.clean(task(1, 1, 0))
    assert cluster.shown(1) is JobState.RETRYING
    cluster.beat(2)
    assert cluster.job(1).attempts[1].tasks[0].node == "n1"
    # A second one that says the same settles it.
    cluster.refuse(task(1, 2, 0), "no_python")
    cluster.clean(task(1, 2, 0))
    cause = cluster.cause(1)
    assert cause.outcome is Outcome.NEVER_STARTED
    assert cause.exit_code == 123
    assert cause.text == "n1 refused: no_python here | so did n0"


def test_a_setup_that_fails_is_the_job_s_own() -> None:
    cluster = gang(3, 1)
    cluster.refuse(task(1, 1, 0), "setup_failed")
    cluster.clean(task(1, 1, 0))
    assert cluster.cause(1).outcome is Outcome.NEVER_STARTED


def test_with_nobody_else_to_ask_one_refusal_is_the_end() -> None:
    cluster = gang(1, 1)
    cluster.refuse(task(1, 1, 0), "no_folder")
    cluster.clean(task(1, 1, 0))
    assert cluster.cause(1).outcome is Outcome.NEVER_STARTED


def test_slow_nodes_are_not_counted_with_those_that_refuse() -> None:
    """They were importing torch when the only one without it had long said so."""
    cluster = gang(3, 2)
    cluster.refuse(task(1, 1, 0), "no_torch")
    cluster.pass_time(cluster.limits.refusal_wait_s)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.RETRYING
    cluster.beat(2)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1", "n2"]


def test_when_no_other_node_is_left_the_end_says_what_each_has_said() -> None:
    cluster = gang(3, 1, retry=Retry(infra=2, backoff_s=30.0))
    for attempt, node in ((1, "n0"), (2, "n1"), (3, "n2")):
        assert cluster.job(1).attempts[-1].tasks[0].node == node
        cluster.refuse(task(1, attempt, 0), "no_space", node_fault=True)
        cluster.clean(task(1, attempt, 0))
        cluster.beat(2)
    cause = cluster.cause(1)
    assert (cause.outcome, cause.exit_code) == (Outcome.INFRA, 122)
    assert cause.text == "n2 refused: no_space here | so did n0, n1"


def test_other_refusals_are_listed_with_their_reasons() -> None:
    cluster = gang(3, 1, retry=Retry(infra=2, backoff_s=30.0))
    for attempt, said in ((1, "the disk is full"), (2, "no torch"), (3, "no torch")):
        refusal = Refusal("no_space", said, node_fault=True)
        cluster.report(task(1, attempt, 0), TaskState.ASSIGNED, refusal=refusal)
        cluster.clean(task(1, attempt, 0))
        cluster.beat(2)
    assert cluster.cause(1).text == (
        "n2 refused: no torch | so did n1 | also refused by others: n0: the disk is full"
    )


def test_the_same_nodes_again_get_their_time() -> None:
    cluster = gang(1, 1, retry=Retry(infra=1, backoff_s=30.0))
    cluster.refuse(task(1, 1, 0), "no_space", node_fault=True)
    cluster.clean(task(1, 1, 0))
    cluster.beat(20)
    assert cluster.shown(1) is JobState.RETRYING
    cluster.beat(11)
    assert cluster.shown(1) is JobState.PREPARING


def test_a_long_refusal_is_a_line_and_its_tail() -> None:
    cluster = gang(1, 1)
    said = "`setup` exited with code 3; its last lines:\nno such package\n\x1b[31mhint: none"
    cluster.report(task(1, 1, 0), TaskState.CLEANED, refusal=Refusal("setup_failed", said))
    cause = cluster.cause(1)
    assert cause.text == "n0 refused: `setup` exited with code 3"
    assert cause.tail.startswith("no such package")


def test_code_that_git_cannot_fetch_names_the_remedy() -> None:
    cluster = gang(2, 1)
    said = "git fetch of x exited with code 1; its last lines:\nfatal: upload-pack: not our ref f"
    for attempt in (1, 2):
        refusal = Refusal("fetch_failed", said)
        cluster.report(task(1, attempt, 0), TaskState.CLEANED, refusal=refusal)
        cluster.beat(2)
    cause = cluster.cause(1)
    assert (cause.kind, cause.outcome) == ("code_not_fetched", Outcome.NEVER_STARTED)
    assert "exited with code 1: fatal: upload-pack: not our ref f; the remote has no" in cause.text
    assert cause.text.endswith("| so did n0")


def test_a_node_that_is_ready_and_refuses_in_one_breath() -> None:
    """Its interpreter died at the gate before anything was said of it."""
    cluster = gang(2, 2)
    cluster.prepare(task(1, 1, 0))
    died = Refusal("bootstrap_failed", "The launcher was killed")
    cluster.report(task(1, 1, 1), TaskState.CLEANED, prepared=prepared(), refusal=died)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.node, cause.refusal) == ("n1", "bootstrap_failed")


def test_a_node_that_refuses_the_name_of_another_machine_is_not_blamed() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=1, pool_share=1.0)))
    cluster.join("n0", "nas01")
    cluster.submit(spec(nodes=2, retry=Retry(infra=0)))
    tasks = prepare_all(cluster, 2)
    refuse_plan(cluster, tasks[0], "hosts_elsewhere")
    clean_all(cluster, tasks)
    assert cluster.shown(1).value in {"FAILED", "LOST"}
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.node, cause.refusal, cause.node_fault) == ("n0", "hosts_elsewhere", False)
    assert all(node.in_service for node in cluster.state.nodes.values())

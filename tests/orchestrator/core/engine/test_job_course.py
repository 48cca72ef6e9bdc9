"""The course of a job through the coordinator's core, input in, facts and commands out."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.ids import JobId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    ForgetTask,
    PrepareTask,
    RankReport,
    Refusal,
    StartTask,
    StopTask,
)
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Launcher, Retry
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.views.display import job_summary, job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task


def gang_of(nodes: int, **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    assert cluster.submit(spec(nodes=nodes, **more)) == a.Submitted(JobId(1), created=True)
    return cluster


def test_a_gang_goes_from_submit_to_success() -> None:
    cluster = gang_of(2)
    assert cluster.shown(1) is JobState.PREPARING
    assert len(cluster.commands("n0", PrepareTask)) == len(cluster.commands("n1", PrepareTask)) == 1
    tasks = cluster.run_gang(1)
    assert cluster.shown(1) is JobState.RUNNING
    for name in tasks:
        cluster.finish(name)
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert cluster.cause(1).exit_code == 0
    assert all(not node.holders for node in cluster.state.nodes.values())
    assert cluster.state.ports == {"m1": set()}
    assert cluster.commands("n1", ForgetTask) == [ForgetTask(tasks[1])]


def test_the_plan_of_one_node_starts_it_by_itself() -> None:
    cluster = gang_of(1)
    facts = cluster.prepare(task(1, 1, 0)).facts
    assert [type(fact) for fact in facts] == [f.TaskPrepared, f.AttemptArranged, f.AttemptStarted]
    (plan,) = cluster.commands("n0", ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    assert plan.start
    assert not cluster.commands("n0", StartTask)
    cluster.finish(task(1, 1, 0))
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_nothing_is_arranged_before_all_are_prepared_nor_started_before_all_are_arranged() -> None:
    cluster = gang_of(3)
    cluster.prepare(task(1, 1, 0))
    cluster.prepare(task(1, 1, 1))
    assert not cluster.commands("n0", ArrangeTask)
    cluster.prepare(task(1, 1, 2))
    assert all(len(cluster.commands(f"n{i}", ArrangeTask)) == 1 for i in range(3))
    cluster.report(task(1, 1, 0), TaskState.ARRANGED, prepared=prepared())
    cluster.report(task(1, 1, 1), TaskState.ARRANGED, prepared=prepared())
    assert not any(isinstance(fact, f.AttemptStarted) for fact in cluster.facts)
    cluster.report(task(1, 1, 2), TaskState.ARRANGED, prepared=prepared())
    assert cluster.commands("n0", StartTask)


def test_workers_wait_for_the_launchers_port() -> None:
    cluster = gang_of(2)
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    for rank in (0, 1):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    assert cluster.commands("n0", StartTask)
    assert not cluster.commands("n1", StartTask)
    cluster.report(task(1, 1, 0), TaskState.STARTED, prepared=prepared())
    assert not cluster.commands("n1", StartTask)
    cluster.report(task(1, 1, 0), TaskState.STARTED, prepared=prepared(), listening=True)
    assert cluster.commands("n1", StartTask) == [StartTask(task(1, 1, 1))]
    assert cluster.shown(1) is JobState.PREPARING


def test_programs_without_torchrun_start_together() -> None:
    cluster = gang_of(2, launcher=Launcher.NONE)
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    for rank in (0, 1):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    assert cluster.commands("n0", StartTask)
    assert cluster.commands("n1", StartTask)


def test_the_first_failing_rank_stops_the_gang_and_names_the_job_s_code() -> None:
    cluster = gang_of(2)
    tasks = cluster.run_gang(1)
    failed = (RankReport(2, exit=ExitStatus(3), error="Traceback\nValueError: no"), RankReport(3))
    cluster.report(
        tasks[1],
        TaskState.STARTED,
        prepared=prepared(),
        ranks=failed,
        first_failed=2,
    )
    assert cluster.shown(1) is JobState.STOPPING
    assert cluster.commands("n0", StopTask)
    assert cluster.commands("n1", StopTask)
    cluster.end(tasks[0], ExitStatus(signal=15), stopped_by="stop")
    cluster.clean(tasks[0])
    cluster.end(tasks[1], ExitStatus(1), stopped_by="stop")
    cluster.clean(tasks[1])
    cause = cluster.cause(1)
    assert (cause.code, cause.rank, cause.node) == (CauseCode.RANK_FAILED, 2, "n1")
    assert cause.exit_code == 3
    assert cause.text == "rank 2 on n1 exited with code 3: ValueError: no"
    assert cluster.shown(1) is JobState.FAILED


def test_a_killed_rank_gives_128_and_its_signal() -> None:
    cluster = gang_of(1)
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(signal=9))
    cluster.clean(name)
    assert cluster.cause(1).exit_code == 137


def test_a_refusal_of_all_alike_never_started_the_job() -> None:
    cluster = gang_of(2)
    cluster.refuse(task(1, 1, 0), "no_folder")
    cluster.refuse(task(1, 1, 1), "no_folder")
    assert cluster.commands("n0", StopTask)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.FAILED
    assert cluster.cause(1).exit_code == 123


def test_a_refusal_of_one_tries_other_nodes() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", "n2")
    cluster.submit(spec(nodes=2))
    cluster.prepare(task(1, 1, 1))
    cluster.refuse(task(1, 1, 0), "no_folder")
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.RETRYING
    cluster.pass_time(2)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1", "n2"]


def test_a_gang_whose_names_do_not_lead_to_it_is_rolled_back_and_tried_elsewhere() -> None:
    cluster = gang_of(2, retry=Retry(infra=1))
    cluster.join("n2")
    for rank in range(2):
        cluster.prepare(task(1, 1, rank))
    assert len(cluster.commands("n0", ArrangeTask)) == 1
    refusal = Refusal("hosts_unresolved", "n0 is 10.9.9.9 here", node_fault=True)
    cluster.report(task(1, 1, 1), TaskState.PREPARED, prepared=prepared(), refusal=refusal)
    assert cluster.shown(1) is JobState.STOPPING
    assert cluster.commands("n0", StopTask)
    assert cluster.commands("n1", StopTask)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.refusal) == (CauseCode.ARRANGE_FAILED, "hosts_unresolved")
    assert cause.text == "n1 refused: n0 is 10.9.9.9 here"
    for rank in range(2):
        cluster.clean(task(1, 1, rank), refusal=refusal if rank else None)
    cluster.pass_time(5.0)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n0", "n2"]


@pytest.mark.parametrize("arranged", [False, True])
def test_a_command_that_no_frame_can_hold_ends_the_job_and_blames_no_node(arranged: bool) -> None:
    cluster = gang_of(2, retry=Retry(infra=3))
    for rank in range(2):
        if arranged:
            cluster.prepare(task(1, 1, rank))
    refusal = Refusal(RefusalCode.TOO_LARGE, "its message is too large")
    state = TaskState.PREPARED if arranged else TaskState.ASSIGNED
    for rank in range(2):
        cluster.report(task(1, 1, rank), state, refusal=refusal)
    assert cluster.commands("n0", StopTask)
    for rank in range(2):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.FAILED
    (attempt,) = cluster.job(1).attempts
    assert attempt.cause is not None
    assert (attempt.cause.refusal, attempt.cause.node_fault) == (RefusalCode.TOO_LARGE, False)
    assert not cluster.job(1).avoid


def test_warnings_of_a_node_are_shown() -> None:
    cluster = gang_of(2)
    cluster.prepare(task(1, 1, 0))
    cluster.prepare(task(1, 1, 1))
    warnings = ("n1 is 127.0.1.1 here",)
    cluster.report(task(1, 1, 1), TaskState.ARRANGED, prepared=prepared(), warnings=warnings)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert [t.warnings for t in view.attempts[0].tasks] == [(), warnings]


def test_the_others_are_heard_for_a_moment_before_a_refusal_rolls_back() -> None:
    cluster = gang_of(2)
    cluster.refuse(task(1, 1, 0), "no_folder")
    assert cluster.shown(1) is JobState.PREPARING
    cluster.pass_time(cluster.limits.refusal_wait_s)
    assert cluster.shown(1) is JobState.STOPPING


def test_the_time_limit_is_a_state_of_its_own() -> None:
    cluster = gang_of(1, time_limit_s=60.0)
    (name,) = cluster.run_gang(1)
    cluster.beat(55)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.reach_limit(name)
    assert cluster.shown(1) is JobState.STOPPING
    cluster.end(name, ExitStatus(signal=15), stopped_by="limit")
    cluster.clean(name)
    assert cluster.shown(1) is JobState.TIMEOUT
    assert cluster.cause(1).text == "the time limit of 60 s is over"
    assert cluster.cause(1).exit_code == 124


def test_the_ranks_of_a_job_that_runs_are_shown() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2, nproc_per_node=2))
    assert _shown_ranks(cluster) == [[], []]
    cluster.run_gang(1)
    assert _shown_ranks(cluster) == [[(0, None), (1, None)], [(2, None), (3, None)]]


def test_ranks_that_torchruns_number_are_not_guessed() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2, nproc_per_node=2, rendezvous="c10d"))
    cluster.run_gang(1)
    assert _shown_ranks(cluster) == [[], []]


def _shown_ranks(cluster: Cluster) -> list[list[tuple[int, object]]]:
    (attempt,) = job_view(cluster.state, cluster.job(1), cluster.now).attempts
    return [[(rank.rank, rank.exit) for rank in task.ranks] for task in attempt.tasks]


def test_user_failures_are_retried_within_their_own_budget() -> None:
    cluster = gang_of(1, retry=Retry(infra=0, user=1, backoff_s=7.0))
    (name,) = cluster.run_gang(1)
    cluster.finish(name, code=5)
    assert cluster.shown(1) is JobState.RETRYING
    cluster.beat(7)
    (again,) = cluster.run_gang(1, attempt=2)
    cluster.finish(again, code=5)
    assert cluster.shown(1) is JobState.FAILED
    assert cluster.cause(1).exit_code == 5


def test_exit_codes_that_are_not_named_are_not_retried() -> None:
    cluster = gang_of(1, retry=Retry(user=3, on_exit_codes=(42,)))
    (name,) = cluster.run_gang(1)
    cluster.finish(name, code=5)
    assert cluster.shown(1) is JobState.FAILED


@pytest.mark.parametrize(
    ("how", "policy", "tried_again"),
    [
        (ExitStatus(93), {}, False),
        (ExitStatus(93), {"on_exit_codes": (93,)}, True),
        (ExitStatus(signal=11), {}, True),
        (ExitStatus(signal=11), {"never_on": (FailureKind.SEGFAULT,)}, False),
        (ExitStatus(signal=11), {"never_on": (FailureKind.OOM_KILLED,)}, True),
        (
            ExitStatus(signal=11),
            {"never_on": (FailureKind.SEGFAULT,), "on_exit_codes": (139,)},
            False,
        ),
    ],
)
def test_failures_that_another_try_does_not_mend(
    how: ExitStatus, policy: dict[str, Any], tried_again: bool
) -> None:
    cluster = gang_of(1, retry=Retry(user=3, **policy))
    (name,) = cluster.run_gang(1)
    cluster.end(name, how)
    cluster.clean(name, exit=how)
    assert cluster.shown(1) is (JobState.RETRYING if tried_again else JobState.FAILED)


def test_an_idempotency_key_gives_the_same_job() -> None:
    cluster = Cluster()
    cluster.join("n0")
    first = cluster.submit(spec(), key="k", digest="d1")
    assert cluster.submit(spec(), key="k", digest="d1") == a.Submitted(JobId(1), created=False)
    conflict = cluster.submit(spec(name="other"), key="k", digest="d2")
    assert first == a.Submitted(JobId(1), created=True)
    assert isinstance(conflict, a.Declined)
    assert conflict.code == "idempotency_conflict"


def test_a_job_that_can_never_fit_is_refused_with_the_reason() -> None:
    cluster = Cluster()
    nobody = cluster.submit(spec())
    assert isinstance(nobody, a.Declined)
    assert "no node has joined yet" in nobody.text
    cluster.join("n0")
    many = cluster.submit(spec(nodes=2))
    assert isinstance(many, a.Declined)
    assert "1 of the 1 known can run it" in many.text
    strict = cluster.submit(spec(resources={"gpu": 8}))
    assert isinstance(strict, a.Declined)
    assert "n0 has 0 of the 8 GPUs wanted" in strict.text


def test_the_queue_is_strict_by_priority_then_by_order_of_submission() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1))
    cluster.submit(spec(nodes=2))
    cluster.submit(spec(nodes=1))
    cluster.submit(spec(nodes=1, priority=90))
    # Job 2 needs both nodes; neither of those behind it may pass it, but the urgent one does.
    assert [cluster.shown(n) for n in (1, 2, 3)] == [
        JobState.PREPARING,
        JobState.QUEUED,
        JobState.QUEUED,
    ]
    assert cluster.shown(4) is JobState.PREPARING
    for name in cluster.run_gang(4):
        cluster.finish(name)
    assert cluster.shown(3) is JobState.QUEUED
    for name in cluster.run_gang(1):
        cluster.finish(name)
    assert cluster.shown(2) is JobState.PREPARING


def test_pools_do_not_hold_each_other_back() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.join("h0", pool="hopper")
    cluster.submit(spec())
    cluster.submit(spec())
    cluster.submit(spec(pool="hopper"))
    assert cluster.shown(2) is JobState.QUEUED
    assert cluster.shown(3) is JobState.PREPARING


def test_a_port_is_leased_to_one_attempt_of_a_machine() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", shared_host=True)
    cluster.submit(spec())
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.run_gang(2)
    ports = {cluster.job(n).attempts[0].master_port for n in (1, 2)}
    assert ports == {20000, 20001}
    for name in (task(1, 1, 0), task(2, 1, 0)):
        cluster.finish(name)
    assert cluster.state.ports == {"m1": set()}


def test_nodes_are_chosen_as_the_job_says() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", "n2")
    cluster.submit(spec(placement={"include": ["n1"], "exclude": []}))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1"]
    cluster.submit(spec(placement={"include": [], "exclude": ["n0"]}))
    assert [t.node for t in cluster.job(2).attempts[0].tasks] == ["n2"]
    both = cluster.submit(spec(nodes=3, placement={"include": [], "exclude": ["n0"]}))
    assert isinstance(both, a.Declined)
    assert "n0 is in placement.exclude" in both.text
    missing = cluster.submit(spec(placement={"include": ["n9"], "exclude": []}))
    assert isinstance(missing, a.Declined)
    assert "n9 is not known" in missing.text


def test_a_waiting_job_shows_the_reason() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1))
    cluster.submit(spec(nodes=2))
    cluster.submit(spec(nodes=1))
    reasons = [
        job_summary(cluster.state, cluster.job(job), cluster.now).reason.text for job in (2, 3)
    ]
    assert reasons == [
        "needs 2 nodes, 1 free: n0 runs job 1",
        (
            "1 ahead in pool default; first is job 2 (priority 50), "
            "which needs 2 nodes, 1 free: n0 runs job 1"
        ),
    ]


def test_only_ranks_that_we_ended_are_called_stopped_by_us() -> None:
    cluster = gang_of(2)
    tasks = cluster.run_gang(1)
    cluster.report(
        tasks[0],
        TaskState.STARTED,
        prepared=prepared(),
        ranks=(RankReport(0, exit=ExitStatus(3)), RankReport(1)),
        first_failed=0,
    )
    # The second failed by itself, a moment later.
    ends = (RankReport(0, exit=ExitStatus(3)), RankReport(1, exit=ExitStatus(3)))
    more = {"prepared": prepared(), "exit": ExitStatus(1), "stopped_by": "stop"}
    cluster.report(tasks[0], TaskState.EXITED, ranks=ends, **more)
    ends = (
        RankReport(2, exit=ExitStatus(signal=15), stopped=True),
        RankReport(3, exit=ExitStatus(0), stopped=True),
    )
    cluster.report(tasks[1], TaskState.EXITED, ranks=ends, **more)
    steps = [s.text for s in job_view(cluster.state, cluster.job(1), cluster.now).timeline]
    assert "rank 0 on n0 exited with code 3; 2 ranks stopped by Muster" in steps

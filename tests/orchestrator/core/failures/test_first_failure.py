"""Choice of the first of several failures, and its text."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import RankReport, Refusal, StopTask
from muster.protocol.outcome import CauseCode, ExitStatus, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from muster.spec.model import Launcher, Retry
from orchestrator.core.failures.causes import TEXT_CHARS_MAX
from orchestrator.core.model.leases import margin_s
from orchestrator.core.views.display import job_summary, job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec

RAISED = '  File "train.py", line 7, in <module>\nValueError: no such split'
PEER = '  File "train.py", line 9, in <module>\nRuntimeError: Connection closed by peer [::1]:7'
ONE = ExitStatus(1)


def running(nodes: int = 2, **more: Any) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes, **more))
    return cluster, cluster.run_gang(1)


def fail(cluster: Cluster, task: TaskId, *ranks: RankReport, **more: Any) -> None:
    cluster.report(task, TaskState.STARTED, prepared=prepared(), ranks=ranks, **more)


def test_a_lost_connection_is_not_the_first_failure_where_another_rank_says_why() -> None:
    cluster, tasks = running()
    fail(cluster, tasks[0], RankReport(0, exit=ONE, error=PEER))
    assert cluster.shown(1) is JobState.RUNNING
    fail(cluster, tasks[1], RankReport(1, exit=ONE, error=RAISED))
    assert cluster.shown(1) is JobState.STOPPING
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.rank, cause.node, cause.kind) == (1, "n1", "exception")
    assert cause.text == "rank 1 on n1 exited with code 1: ValueError: no such split"
    assert cause.tail == RAISED
    assert not cluster.state.suspects


def test_a_lost_connection_that_nobody_explains_stops_the_gang_within_a_second() -> None:
    cluster, tasks = running()
    fail(cluster, tasks[0], RankReport(0, exit=ONE, error=PEER))
    cluster.pass_time(0.9)
    assert cluster.shown(1) is JobState.STOPPING
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.kind == "peer_lost"
    assert "none has said why" in cause.text
    assert cluster.commands("n0", StopTask)
    assert cluster.commands("n1", StopTask)


@pytest.mark.parametrize("launcher", [Launcher.NONE, Launcher.PROCESSES])
def test_a_leased_port_that_was_taken_before_rank_0_listened_costs_nothing(
    launcher: Launcher,
) -> None:
    cluster, tasks = running(launcher=launcher)
    port = cluster.job(1).attempts[0].master_port
    fail(cluster, tasks[0], RankReport(0, exit=ONE, error=in_use(port)))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.outcome, cause.refusal) == (Outcome.INFRA, RefusalCode.PORT_TAKEN)
    assert cause.kind == "port_in_use"
    assert cause.text.endswith(
        f"port {port} was free for MASTER_PORT, but another program has taken it since"
    )
    for name in tasks:
        cluster.clean(name)
    cluster.beat(1.0)
    job = cluster.job(1)
    assert [t.node for t in job.attempts[1].tasks] == ["n0", "n1"]
    assert (job.infra_used, job.user_used, job.avoid) == (0, 0, frozenset())


@pytest.mark.parametrize(
    ("launcher", "rank", "beside"),
    [
        (Launcher.NONE, 0, 1),  # a port of its own choice
        (Launcher.PROCESSES, 1, 0),  # no other rank listens on it
        (Launcher.TORCHRUN, 0, 0),  # torchrun does
    ],
)
def test_another_port_in_use_is_the_jobs_own_affair(
    launcher: Launcher, rank: int, beside: int
) -> None:
    cluster, tasks = running(launcher=launcher)
    port = cluster.job(1).attempts[0].master_port + beside
    fail(cluster, tasks[rank], RankReport(rank, exit=ONE, error=in_use(port)))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.outcome, cause.refusal, cause.kind) == (Outcome.USER, None, "port_in_use")


def in_use(port: int) -> str:
    """The words of torch."""
    return (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        f"network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, "
        "message: address already in use\n"
    )


def test_the_first_of_two_lost_connections_counts() -> None:
    """By the nodes' own clocks: the report of the second came first."""
    cluster, tasks = running(3)
    late = RankReport(0, exit=ONE, error=PEER, at_s=10.2)
    early = RankReport(1, exit=ONE, error=PEER, at_s=10.0)
    fail(cluster, tasks[0], late, running_s=10.21)
    cluster.pass_time(0.05)
    fail(cluster, tasks[1], early, running_s=10.3)
    cluster.pass_time(1)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.rank == 1


def test_on_one_node_a_signal_counts_before_the_connections_that_it_cost() -> None:
    cluster, tasks = running()
    fail(
        cluster,
        tasks[1],
        RankReport(2, exit=ONE, error=PEER, at_s=5.0),
        RankReport(3, exit=ExitStatus(signal=9), at_s=5.1),
        first_failed=2,
    )
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.rank, cause.kind) == (3, "killed")
    assert "was killed by SIGKILL" in cause.text
    assert "out-of-memory killer" in cause.text


def test_a_rank_that_was_asked_to_end_is_never_blamed() -> None:
    cluster, tasks = running()
    stopped = RankReport(0, exit=ExitStatus(signal=15), at_s=1.0, stopped=True)
    fail(cluster, tasks[0], stopped, RankReport(1))
    cluster.pass_time(1)
    assert cluster.shown(1) is JobState.RUNNING


def test_a_term_from_elsewhere_is_reported_as_one() -> None:
    cluster, tasks = running()
    fail(cluster, tasks[0], RankReport(0, exit=ExitStatus(signal=15)))
    cluster.pass_time(1)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.kind == "terminated"
    assert "not stopped by Muster" in cause.text


def test_a_suspicion_outlives_the_coordinator_that_had_it() -> None:
    """The end of the task is on disk, its node says nothing of it again."""
    cluster, tasks = running()
    ranks = (RankReport(0, exit=ONE, error=PEER),)
    more: dict[str, Any] = {"prepared": prepared(), "ranks": ranks, "exit": ONE}
    cluster.report(tasks[0], TaskState.CLEANED, **more)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.timers.clear()
    again = Cluster(state=cluster.state)
    again.pass_time(1)
    cause = again.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.rank, cause.kind) == (0, "peer_lost")


def test_a_lost_connection_to_a_node_that_is_lost_is_the_node_s_fault() -> None:
    cluster, tasks = running(retry=Retry(infra=0, user=5))
    fail(cluster, tasks[0], RankReport(0, exit=ONE, error=PEER))
    cluster.leave("n1")
    cluster.pass_time(1)
    cluster.end(tasks[0], ExitStatus(signal=15), stopped_by="stop")
    cluster.clean(tasks[0])
    assert cluster.shown(1) is JobState.STOPPING
    lease_s = cluster.limits.lease_s
    cluster.beat(lease_s + margin_s(lease_s) + 1)
    cause = cluster.cause(1)
    assert (cause.code, cause.outcome, cause.node) == (CauseCode.NODE_LOST, Outcome.INFRA, "n1")
    assert "rank 0 on n0" in cause.text


def test_the_launcher_s_own_words_where_no_rank_has_failed() -> None:
    cluster, tasks = running(retry=Retry(infra=0))
    said = '  File "run.py", line 1, in main\nDistNetworkError: EADDRINUSE, address already in use'
    cluster.report(tasks[0], TaskState.EXITED, prepared=prepared(), exit=ONE, launcher_said=said)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.kind) == (CauseCode.LAUNCHER_FAILED, "port_in_use")
    assert "MASTER_PORT" in cause.text
    assert cause.tail == said


def test_the_reason_has_an_end_however_long_a_name_is() -> None:
    cluster, tasks = running(1)
    long = Refusal("spawn_failed", f"The program {'x' * 100_000!r} was not found")
    how = ExitStatus(127)
    cluster.report(tasks[0], TaskState.EXITED, prepared=prepared(), exit=how, refusal=long)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert len(cause.text) <= TEXT_CHARS_MAX + 3
    assert cause.kind == "no_program"


def test_everything_that_is_shown_of_it() -> None:
    cluster, tasks = running(stop={"signal": "SIGTERM", "grace_s": 90.0})
    oom = RankReport(2, exit=ExitStatus(signal=9), oom=True, error="epoch 3")
    fail(cluster, tasks[1], oom, RankReport(3))
    cluster.pass_time(7)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.failure == "oom_killed"
    assert view.kill_at == timestamp(cluster.now.wall - 7 + 90)
    rest = RankReport(3, exit=ExitStatus(0), stopped=True)
    cluster.report(
        tasks[1],
        TaskState.EXITED,
        prepared=prepared(),
        exit=ExitStatus(1),
        ranks=(oom, rest),
        stopped_by="stop",
    )
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert [r.stopped for r in view.attempts[0].tasks[1].ranks] == [False, True]
    assert any("; 1 rank stopped by Muster" in step.text for step in view.timeline)
    for name in tasks:
        cluster.clean(name, exit=ExitStatus(signal=15), stopped_by="stop")
    summary = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert (summary.failure, summary.exit_code, summary.kill_at) == ("oom_killed", 137, None)

"""Signals that a user sends to the ranks of a job that runs."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link.control_channel import SignalTask, StopTask, TaskReport
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Launcher
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec


def running(nodes: int = 2, **more: Any) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=nodes, **more))
    return cluster, cluster.run_gang(1)


def send(cluster: Cluster, signal: str = "SIGUSR1", **more: Any) -> a.Result:
    cluster.requests += 1
    request = a.RequestId(cluster.requests)
    cluster.turn(s.SignalReceived(request, JobId(1), "ada", signal, **more))
    return cluster.answers[request]


def refused(result: a.Result) -> str:
    assert isinstance(result, a.Declined), result
    return result.code


def test_every_node_is_notified_and_nothing_ends() -> None:
    cluster, tasks = running()
    assert send(cluster) == a.Signalled(JobId(1), (NodeName("n0"), NodeName("n1")), ())
    for rank, name in enumerate(tasks):
        said = cluster.commands(f"n{rank}", SignalTask)
        assert said == [SignalTask(name, "SIGUSR1", 1, late=False)]
        assert not cluster.commands(f"n{rank}", StopTask)
    assert cluster.shown(1) is JobState.RUNNING
    timeline = job_view(cluster.state, cluster.job(1), cluster.now).timeline
    assert timeline[-1].text == "SIGUSR1 sent to all ranks by ada"


def test_each_of_many_signals_is_sent_once_with_its_own_number() -> None:
    cluster, (name, _) = running()
    for signal in ("SIGUSR1", "SIGUSR2", "SIGUSR1"):
        send(cluster, signal)
    assert cluster.commands("n0", SignalTask) == [
        SignalTask(name, signal, number, late=False)
        for number, signal in enumerate(("SIGUSR1", "SIGUSR2", "SIGUSR1"), 1)
    ]


def test_to_one_node() -> None:
    cluster, _ = running()
    assert send(cluster, node="n1") == a.Signalled(JobId(1), (NodeName("n1"),), ())
    assert not cluster.commands("n0", SignalTask)
    assert len(cluster.commands("n1", SignalTask)) == 1
    assert refused(send(cluster, node="n7")) == "not_on_node"


def test_to_one_rank_on_the_node_that_has_it() -> None:
    cluster, tasks = running(nproc_per_node=4)
    assert send(cluster, rank=5) == a.Signalled(JobId(1), (NodeName("n1"),), ())
    assert not cluster.commands("n0", SignalTask)
    expected = SignalTask(tasks[1], "SIGUSR1", 1, ranks=(5,), late=False)
    assert cluster.commands("n1", SignalTask) == [expected]
    declined = send(cluster, rank=8)
    assert refused(declined) == "no_such_rank"
    assert isinstance(declined, a.Declined)
    assert declined.hint == "its ranks are 0 to 7"
    assert refused(send(cluster, rank=5, node="n0")) == "no_such_rank"


def test_a_rank_of_an_elastic_gang_is_searched_on_all_nodes() -> None:
    cluster, _ = running(nproc_per_node=4, rendezvous="c10d")
    send(cluster, rank=5)
    for node in ("n0", "n1"):
        (said,) = cluster.commands(node, SignalTask)
        assert isinstance(said, SignalTask)
        assert said.ranks == (5,)


def test_the_rank_of_a_plain_command_is_its_node() -> None:
    cluster, tasks = running(launcher=Launcher.NONE)
    send(cluster, rank=1)
    expected = SignalTask(tasks[1], "SIGUSR1", 1, late=False)
    assert cluster.commands("n1", SignalTask) == [expected]


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGSTOP"])
def test_signals_that_end_or_stop_the_job_need_cancel(signal: str) -> None:
    cluster, _ = running()
    declined = send(cluster, signal)
    assert refused(declined) == "signal_refused"
    assert isinstance(declined, a.Declined)
    assert "muster cancel" in declined.hint
    assert not cluster.commands("n0", SignalTask)


def test_only_a_job_that_runs_is_signalled() -> None:
    cluster = Cluster()
    cluster.join("n0")
    assert refused(send(cluster)) == "unknown_job"
    cluster.submit(spec())
    assert refused(send(cluster)) == "not_running"
    (name,) = cluster.run_gang(1)
    cluster.cancel(1)
    assert refused(send(cluster)) == "not_running"
    cluster.clean(name)
    assert refused(send(cluster)) == "already_ended"


def test_a_node_that_was_away_is_notified_when_it_is_back_and_which_is_said() -> None:
    cluster, tasks = running()
    cluster.leave("n1")
    result = send(cluster)
    assert isinstance(result, a.Signalled)
    assert result.away == (NodeName("n1"),)
    cluster.sent.clear()
    held = TaskReport(tasks[1], TaskState.STARTED, prepared=prepared(), running_s=76.0)
    cluster.join("n1", tasks=(held,))
    expected = SignalTask(tasks[1], "SIGUSR1", 1, late=False)
    assert cluster.commands("n1", SignalTask) == [expected]


def test_it_is_on_disk_before_a_node_hears_of_it() -> None:
    fact = f.SignalRequested(JobId(1), 1, "ada", "SIGUSR1")
    assert fact.durability is Durability.SYNC
    assert fact.text == "SIGUSR1 sent to all ranks"

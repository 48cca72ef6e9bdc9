"""Gangs that grow and shrink while they run."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import (
    ArrangeTask,
    PrepareTask,
    RankReport,
    StartTask,
    StopTask,
    TaskReport,
)
from muster.protocol.link.terms import Terms
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from muster.protocol.observations.tasks import Checkpoint
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry, Stop, Warn
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.blame import blame
from orchestrator.core.model.leases import margin_s
from orchestrator.core.model.state import State, Task
from orchestrator.core.scheduling import network, rendezvous
from orchestrator.core.views.display import job_summary, job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task
from tests.orchestrator.core.scheduling.test_rendezvous import eth

KILLED = ExitStatus(signal=9)


def elastic(nodes: int, least: int, most: int, **more: Any) -> Cluster:
    """A cluster of so many nodes, with a job that has been placed on them."""
    cluster = Cluster()
    cluster.join(*(f"n{i}" for i in range(nodes)))
    cluster.submit(spec(nodes=least, max_nodes=most, rendezvous="c10d", **more))
    return cluster


def tasks(cluster: Cluster) -> list[Task]:
    return cluster.job(1).attempts[0].tasks


def start(cluster: Cluster, rank: int) -> None:
    """Bring one task that has joined to its start."""
    cluster.prepare(task(1, 1, rank))
    cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    cluster.report(task(1, 1, rank), TaskState.STARTED, prepared=prepared())


def lose(cluster: Cluster, rank: int) -> None:
    """Its torchrun is killed, and nothing of the task is left."""
    cluster.end(task(1, 1, rank), KILLED)
    cluster.clean(task(1, 1, rank))
    assert check(cluster.state) == []


def test_it_starts_with_what_there_is() -> None:
    assert [t.node for t in tasks(elastic(3, 2, 4))] == ["n0", "n1", "n2"]
    assert [t.node for t in tasks(elastic(5, 2, 4))] == ["n0", "n1", "n2", "n3"]
    assert not elastic(1, 2, 4).state.jobs


def test_a_list_of_jobs_can_say_how_many_nodes_of_how_many_it_has() -> None:
    cluster = elastic(2, 1, 3)
    summary = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert (summary.nodes, summary.max_nodes, summary.nodes_now) == (1, 3, 2)
    cluster.submit(spec(nodes=1, max_nodes=2, rendezvous="c10d"))
    waiting = job_summary(cluster.state, cluster.job(2), cluster.now)
    assert (waiting.nodes, waiting.max_nodes, waiting.nodes_now) == (1, 2, None)


def test_a_node_that_becomes_free_joins() -> None:
    cluster = elastic(2, 2, 3)
    cluster.run_gang(1)
    cluster.join("n2")
    assert [(t.rank, t.node, t.joined) for t in tasks(cluster)][2] == (2, "n2", True)
    assert len(cluster.commands("n2", PrepareTask)) == 1
    assert not cluster.commands("n2", ArrangeTask)
    cluster.prepare(task(1, 1, 2), address="10.0.0.3")
    (plan,) = cluster.commands("n2", ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    assert [name for name, _ in plan.hosts] == ["n0", "n1", "n2"]
    assert cluster.commands("n2", StartTask)
    began = cluster.job(1).attempts[0].started_at
    start(cluster, 2)
    assert cluster.job(1).attempts[0].started_at == began
    assert cluster.shown(1) is JobState.RUNNING
    assert check(cluster.state) == []
    assert "3 of 2..3 nodes" in job_view(cluster.state, cluster.job(1), cluster.now).reason.text


@pytest.mark.parametrize(("ranks", "joins"), [(8, False), (2, True), (None, True)])
def test_a_node_with_too_few_gpus_for_its_ranks_does_not_join(
    ranks: int | None, joins: bool
) -> None:
    cluster = Cluster()
    cluster.join("n0", gpus=8)
    cluster.submit(spec(nodes=1, max_nodes=2, rendezvous="c10d", nproc_per_node=ranks))
    cluster.run_gang(1)
    cluster.join("n1", gpus=2)
    assert [t.node for t in tasks(cluster)] == (["n0", "n1"] if joins else ["n0"])


def test_it_starts_without_nodes_that_have_too_few_gpus_where_enough_have_more() -> None:
    for least, gang in ((1, ["n2"]), (2, ["n0", "n1", "n2"])):
        cluster = Cluster()
        for name, gpus in (("n0", 2), ("n1", 2), ("n2", 8)):
            cluster.join(name, gpus=gpus)
        cluster.submit(spec(nodes=least, max_nodes=3, rendezvous="c10d", nproc_per_node=8))
        assert [t.node for t in tasks(cluster)] == gang


def test_ranks_without_gpus_join_wherever_there_is_room() -> None:
    cluster = elastic(1, 1, 2, nproc_per_node=4)
    cluster.run_gang(1)
    cluster.join("n1")
    assert [t.node for t in tasks(cluster)] == ["n0", "n1"]


def test_nobody_joins_beyond_the_bound_or_before_the_start_or_before_who_waits() -> None:
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    cluster.join("n2")
    assert len(tasks(cluster)) == 2
    early = elastic(1, 1, 2)
    early.prepare(task(1, 1, 0))
    early.join("n1")
    assert len(tasks(early)) == 1
    waited_for = elastic(2, 1, 2)
    waited_for.run_gang(1)
    waited_for.submit(spec(nodes=2))
    lose(waited_for, 1)
    assert len(tasks(waited_for)) == 2


def test_a_torchrun_that_is_killed_leaves_and_its_node_may_come_back_twice() -> None:
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    for again in (2, 3):
        lose(cluster, again - 1)
        assert tasks(cluster)[again - 1].left
        assert (tasks(cluster)[again].node, len(tasks(cluster))) == ("n1", again + 1)
        start(cluster, again)
    lose(cluster, 3)
    assert len(tasks(cluster)) == 4
    assert cluster.state.nodes[NodeName("n1")].holders == {}
    assert cluster.shown(1) is JobState.RUNNING


def test_the_last_one_may_be_killed_when_the_others_have_done_well() -> None:
    """Its leaving and its exit come in one report."""
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    cluster.end(task(1, 1, 0), ExitStatus(0))
    lose(cluster, 1)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.COMPLETED


def test_ranks_of_a_killed_torchrun_get_the_job_s_grace_period() -> None:
    cluster = elastic(2, 1, 2, stop=Stop(signal="SIGUSR2", grace_s=77.0))
    cluster.run_gang(1)
    cluster.end(task(1, 1, 1), KILLED)
    assert tasks(cluster)[1].left
    wanted = StopTask(task(1, 1, 1), "SIGUSR2", 77.0)
    assert cluster.commands("n1", StopTask) == [wanted]


def test_a_lost_node_leaves_and_is_free_when_it_is_back() -> None:
    cluster = elastic(3, 2, 3)
    cluster.run_gang(1)
    cluster.leave("n2")
    lease_s = cluster.limits.lease_s
    cluster.beat(lease_s + margin_s(lease_s) + 1)
    assert cluster.shown(1) is JobState.RUNNING
    assert tasks(cluster)[2].state is TaskState.LOST
    assert cluster.state.nodes[NodeName("n2")].holders == {}
    assert check(cluster.state) == []
    assert "n2 was lost" in job_view(cluster.state, cluster.job(1), cluster.now).timeline[-1].text


def test_with_fewer_than_the_lower_bound_it_ends() -> None:
    cluster = elastic(2, 2, 3)
    cluster.run_gang(1)
    cluster.end(task(1, 1, 1), KILLED)
    assert cluster.shown(1) is JobState.STOPPING


def test_without_its_launcher_it_ends() -> None:
    cluster = elastic(3, 1, 3)
    cluster.run_gang(1)
    cluster.end(task(1, 1, 0), KILLED)
    assert cluster.shown(1) is JobState.STOPPING


def test_ranks_that_fail_are_torchruns_to_start_again_until_it_gives_up() -> None:
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    failed = (RankReport(1, exit=ExitStatus(3), error="no"),)
    cluster.report(
        task(1, 1, 1), TaskState.STARTED, prepared=prepared(), ranks=failed, first_failed=1
    )
    assert cluster.shown(1) is JobState.RUNNING
    cluster.report(
        task(1, 1, 1),
        TaskState.EXITED,
        prepared=prepared(),
        ranks=failed,
        first_failed=1,
        exit=ExitStatus(1),
    )
    attempt = cluster.job(1).attempts[0]
    assert attempt.cause is not None
    assert (attempt.cause.code, attempt.cause.rank) == (CauseCode.RANK_FAILED, 1)


def test_a_joining_node_that_refuses_does_no_harm_and_is_not_asked_again() -> None:
    cluster = elastic(1, 1, 2)
    cluster.run_gang(1)
    cluster.join("n1")
    cluster.refuse(task(1, 1, 1), "no_folder")
    cluster.clean(task(1, 1, 1))
    assert cluster.shown(1) is JobState.RUNNING
    assert len(tasks(cluster)) == 2
    assert cluster.state.nodes[NodeName("n1")].holders == {}
    assert check(cluster.state) == []


def test_it_succeeds_with_those_that_are_there() -> None:
    cluster = elastic(3, 1, 4)
    cluster.run_gang(1)
    lose(cluster, 2)
    cluster.end(task(1, 1, 0), ExitStatus(0))
    assert cluster.shown(1) is JobState.RUNNING
    cluster.end(task(1, 1, 1), ExitStatus(0))
    # A node that is still joining gets a stop.
    assert cluster.commands("n2", StopTask)
    for rank in (0, 1, 3):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert all(not node.holders for node in cluster.state.nodes.values())


def test_a_node_that_left_may_have_another_job_when_the_first_ends() -> None:
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    lose(cluster, 1)
    for rank in (2, 3):
        start(cluster, rank)
        lose(cluster, rank)
    cluster.submit(spec(nodes=1))
    holders = dict(cluster.state.nodes[NodeName("n1")].holders)
    assert list(holders) == [(2, 1)]
    cluster.finish(task(1, 1, 0))
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert cluster.state.nodes[NodeName("n1")].holders == holders
    assert check(cluster.state) == []


def test_the_time_limit_counts_from_the_first_start() -> None:
    cluster = elastic(1, 1, 2, time_limit_s=100.0, stop=Stop(warn=Warn("SIGUSR1", 30.0)))
    cluster.run_gang(1)
    cluster.beat(60)
    cluster.join("n1")
    start(cluster, 1)
    launcher = Terms(2, 100.0, 70.0, "SIGUSR1", admits=("10.0.0.1",))
    assert cluster.terms(task(1, 1, 0)) == launcher
    assert cluster.terms(task(1, 1, 1)) == Terms(2, 40.0, 10.0, "SIGUSR1")
    assert cluster.replayed().jobs[JobId(1)].attempts[0].tasks[1].joined_after_s == 60.0


def test_a_node_that_joined_ends_the_whole_gang_at_the_limit() -> None:
    cluster = elastic(1, 1, 2, time_limit_s=100.0)
    cluster.run_gang(1)
    cluster.join("n1")
    start(cluster, 1)
    cluster.reach_limit(task(1, 1, 1))
    attempt = cluster.job(1).attempts[0]
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.TIME_LIMIT


def test_no_node_joins_until_the_run_time_of_the_gang_is_known() -> None:
    cluster = elastic(1, 1, 2, time_limit_s=100.0)
    (first,) = cluster.run_gang(1)
    again = Cluster(state=cluster.replayed())
    again.join("n1")
    assert len(again.job(1).attempts[0].tasks) == 1
    held = TaskReport(first, TaskState.STARTED, prepared=prepared(), running_s=60.0)
    again.join("n0", tasks=(held,))
    assert again.job(1).attempts[0].tasks[1].joined_after_s == 60.0


def test_replay_gives_the_same_gang() -> None:
    cluster = elastic(2, 1, 2)
    cluster.run_gang(1)
    lose(cluster, 1)
    start(cluster, 2)
    replayed = State()
    for fact in cluster.facts:
        apply(replayed, fact, 0.0)
    attempt = replayed.jobs[cluster.job(1).id].attempts[0]
    assert [(t.id, t.node, t.state, t.left, t.joined) for t in attempt.tasks] == [
        (t.id, t.node, t.state, t.left, t.joined) for t in tasks(cluster)
    ]
    assert check(replayed) == []


def test_only_who_is_on_the_gangs_network_joins() -> None:
    cluster = Cluster()
    for number in (1, 2):
        cluster.join(f"n{number}", interfaces=eth("e0", f"10.0.0.{number}/24"))
    cluster.submit(spec(nodes=2, max_nodes=4, rendezvous="c10d"))
    cluster.run_gang(1)
    cluster.join("far", interfaces=eth("e0", "10.9.0.3/24"))
    assert len(tasks(cluster)) == 2
    cluster.join("near", interfaces=eth("e1", "10.0.0.4/24"))
    assert [t.node for t in tasks(cluster)] == ["n1", "n2", "near"]
    cluster.prepare(task(1, 1, 2), address="192.0.2.4", interface="mgmt")
    (plan,) = cluster.commands("near", ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    assert plan.argv[plan.argv.index("--local-addr") + 1] == "10.0.0.4"
    assert plan.env["GLOO_SOCKET_IFNAME"] == "e1"
    assert check(cluster.state) == []


def test_a_coordinator_that_starts_anew_does_not_blame_who_has_left() -> None:
    cluster = elastic(3, 1, 3)
    cluster.run_gang(1)
    lose(cluster, 1)
    before = tasks(cluster)
    cluster.turn(s.CoordinatorStarted(cluster.state.epoch + 1, "here"))
    for node in ("n0", "n1", "n2"):
        held = tuple(
            TaskReport(t.id, t.state, prepared=t.prepared, listening=t.listening)
            for t in before
            if t.node == node and t.state not in (TaskState.ASSIGNED, TaskState.CLEANED)
        )
        cluster.join(node, tasks=held)
    cluster.beat(cluster.limits.blame_wait_s + 60)
    assert cluster.shown(1) is JobState.RUNNING
    assert check(cluster.state) == []


def test_a_node_that_left_is_not_to_blame_for_a_later_failure() -> None:
    cluster = elastic(3, 1, 3, retry=Retry(infra=2, user=0))
    cluster.run_gang(1)
    cluster.leave("n2")
    cluster.beat(400)
    assert tasks(cluster)[2].state is TaskState.LOST
    timed_out = "RuntimeError: Timed out waiting 1800000ms for recv operation"
    cluster.report(
        task(1, 1, 0),
        TaskState.EXITED,
        prepared=prepared(),
        exit=ExitStatus(1),
        ranks=(RankReport(0, exit=ExitStatus(1), error=timed_out),),
    )
    cluster.pass_time(1)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    assert cluster.shown(1) is JobState.FAILED
    assert cluster.cause(1).node == "n0"
    assert blame(cluster.job(1)) == {}
    texts = [step.text for step in job_view(cluster.state, cluster.job(1), cluster.now).timeline]
    assert "every node clean" in texts


def test_joining_nodes_are_found_without_comparing_all_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    for number in (1, 2):
        cluster.join(f"n{number}", interfaces=eth("e0", f"10.0.0.{number}/24"))
    cluster.submit(spec(nodes=2, max_nodes=4, rendezvous="c10d"))
    cluster.run_gang(1)
    monkeypatch.setattr(rendezvous, "choose", lambda *_: pytest.fail("all networks are weighed"))
    monkeypatch.setattr(
        network, "_no_network_text", lambda *_: pytest.fail("a sentence for nobody")
    )
    cluster.join("far", interfaces=eth("e0", "10.9.0.3/24"))
    cluster.join("near", interfaces=eth("e0", "10.0.0.3/24"))
    assert [t.node for t in tasks(cluster)] == ["n1", "n2", "near"]


@pytest.mark.parametrize(
    ("networks", "first", "second", "comes", "where"),
    [
        ((), ("e0", "10.0.0.1/24"), ("e0", "10.0.0.2/24"), ("e0", "10.0.0.2/24"), None),
        ((), ("e0", "10.0.0.1/24"), ("e0", "10.0.0.2/24"), ("e0", "10.1.0.3/24"), None),
        (
            ("10.0.0.0/8",),
            ("e0", "10.0.0.1/24"),
            ("e0", "10.1.0.2/24"),
            ("e7", "10.2.0.3/24"),
            "10.2.0.3",
        ),
        (("e0",), ("e0", "10.0.0.1/24"), ("e0", "10.0.0.2/24"), ("e1", "10.0.0.3/24"), None),
        (
            ("ib0", "10.0.0.0/16"),
            ("e0", "10.0.0.1/24"),
            ("e0", "10.0.0.2/24"),
            ("ib0", "10.0.0.3/24"),
            "10.0.0.3",
        ),
    ],
)
def test_the_address_of_a_joining_node(
    networks: tuple[str, ...],
    first: tuple[str, str],
    second: tuple[str, str],
    comes: tuple[str, str],
    where: str | None,
) -> None:
    cluster = Cluster()
    cluster.state.networks = networks
    cluster.join("n1", interfaces=eth(*first))
    cluster.join("n2", interfaces=eth(*second))
    cluster.submit(spec(nodes=2, max_nodes=3, rendezvous="c10d"))
    cluster.run_gang(1)
    cluster.join("n3", interfaces=eth(*comes))
    found = [t.endpoint.address for t in tasks(cluster)[2:] if t.endpoint is not None]
    assert found == ([where] if where else [])


def test_on_one_machine_only_its_own_nodes_join() -> None:
    lo = (Interface("lo", InterfaceKind.LOOPBACK, ("127.0.0.1/8",)),)
    cluster = Cluster()
    cluster.join("n1", "n2", interfaces=lo, shared_host=True)
    cluster.submit(spec(nodes=2, max_nodes=4, rendezvous="c10d"))
    cluster.run_gang(1)
    cluster.join("other", interfaces=lo, shared_host=True, machine_id="m2")
    assert len(tasks(cluster)) == 2
    cluster.join("n3", interfaces=lo, shared_host=True)
    assert [t.node for t in tasks(cluster)][2:] == ["n3"]
    assert check(cluster.state) == []


@pytest.mark.parametrize(("least", "left"), [(1, ["n2", "n3"]), (2, ["n2", "n3"]), (3, None)])
def test_all_that_are_drained_after_a_checkpoint_leave_after_the_same_one(
    least: int, left: list[str] | None
) -> None:
    cluster = elastic(4, least, 4, checkpoint_dir="/ckpt")
    name, *_ = cluster.run_gang(1)
    for node in ("n2", "n3"):
        cluster.drain(node, after_checkpoint=True)
    seen = Checkpoint(1, "step-1", 0.0)
    cluster.report(name, TaskState.STARTED, prepared=prepared(), checkpoint=seen)
    if left is None:
        # It cannot do without both, and has to leave the second with its next checkpoint anyway.
        assert cluster.shown(1) is JobState.STOPPING
    else:
        assert [t.node for t in tasks(cluster) if not t.present] == left
        assert cluster.shown(1) is JobState.RUNNING
    assert check(cluster.state) == []

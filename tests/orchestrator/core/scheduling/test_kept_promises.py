"""Promises that hold, and nodes that do not idle, in cases that the simulator has found."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import JobId, NodeName
from muster.protocol.states import TaskState
from muster.spec.model import Rendezvous
from orchestrator.core.engine.guarded_turn import guarded_turns
from orchestrator.core.facts.effects import RequestId, Timer, TimerKind
from orchestrator.core.facts.inputs import ChangeReceived
from orchestrator.core.model.plan import MoveCause, PoolPolicy
from orchestrator.core.model.state import Share
from orchestrator.core.scheduling.planned_ends import CLEAN_S, START_S
from orchestrator.core.scheduling.timeline import Held, shares_at_peak
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task, task_report
from tests.orchestrator.core.scheduling.test_backfill import (
    HOUR,
    cluster_of,
    limited,
    moves,
    promised_in_s,
    waits,
)
from tests.orchestrator.core.scheduling.test_gpus import gpu, part
from tests.orchestrator.core.scheduling.test_gpus import join as join_with_gpus


def restarted(cluster: Cluster) -> Cluster:
    """A new process, to which no node has connected yet."""
    return Cluster(cluster.replayed(), mono=cluster.mono, pools=cluster.pools)


def half_started(cluster: Cluster, job: int) -> None:
    """Bring a gang of two to where the report of its last start is delayed."""
    for rank in (0, 1):
        cluster.prepare(task(job, 1, rank))
    for rank in (0, 1):
        cluster.report(task(job, 1, rank), TaskState.ARRANGED, prepared=prepared())
    cluster.report(task(job, 1, 0), TaskState.STARTED, prepared=prepared(), listening=True)


def test_a_job_gets_the_nodes_of_a_lost_promise_behind_it_at_once() -> None:
    cluster = cluster_of(3)
    for limit_s in (600.0, 1200.0, 1200.0):
        cluster.submit(limited(limit_s))
    running = cluster.run_gang(2)
    cluster.submit(spec())
    cluster.submit(limited(600.0, nodes=2, placement={"include": ["n1", "n2"]}))
    for name in running:
        cluster.finish(name)
    assert waits(cluster, 4)  # it has no limit, and job 5 needs n1
    assert cluster.job(5).starts_by is not None
    cluster.drain("n2")
    assert cluster.job(5).starts_by is None
    assert not waits(cluster, 4)


def test_a_drain_elsewhere_lets_a_job_have_the_node_that_failed_it() -> None:
    cluster = cluster_of(3)
    for name in ("n0", "n1", "n2"):
        cluster.drain(name)
    cluster.submit(limited(HOUR))
    cluster.change(1, hold=True)
    cluster.submit(limited(HOUR, nodes=3))
    cluster.resume("n2")
    again = restarted(cluster)
    again.job(1).avoid = frozenset({NodeName("n0")})
    again.join("n0", "n1")
    for name in ("n0", "n1"):
        again.resume(name)
    again.beat(20.0)
    again.leave("n1")
    again.change(1, hold=False)
    assert waits(again, 1)  # n1 may be back, so it does not need n0
    assert again.state.plan.bookings[JobId(1)].nodes == ("n2",)
    again.cancel(2)
    again.drain("n1")
    assert not waits(again, 1)


def test_a_job_takes_a_node_that_comes_just_before_its_planned_start() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(600.0))
    cluster.run_gang(1)
    cluster.leave("n1")
    cluster.submit(limited(600.0))
    cluster.beat(500.0)
    cluster.submit(spec(nodes=2))
    left_s = promised_in_s(cluster, 2)
    assert left_s is not None
    cluster.beat(left_s - 0.5)
    cluster.join("n1")
    assert not waits(cluster, 2)


def test_a_delayed_report_of_a_start_moves_no_promise() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(600.0, nodes=2))
    half_started(cluster, 1)
    cluster.submit(limited(HOUR))
    cluster.beat(20.0)
    cluster.report(task(1, 1, 1), TaskState.STARTED, prepared=prepared(), running_s=20.0)
    cluster.submit(limited(HOUR))
    assert moves(cluster, 2) == []


def test_the_deadline_of_a_drain_does_not_begin_anew_with_the_run() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec(nodes=2))
    half_started(cluster, 1)
    cluster.drain("n0", deadline_s=300.0)
    cluster.submit(limited(HOUR))
    assert promised_in_s(cluster, 2) == 300 + 30 + CLEAN_S
    cluster.beat(20.0)
    cluster.report(task(1, 1, 1), TaskState.STARTED, prepared=prepared(), running_s=20.0)
    cluster.submit(limited(HOUR))
    assert moves(cluster, 2) == []


def test_a_drain_during_the_start_of_a_gang_does_not_begin_the_start_anew() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(600.0, nodes=3))
    cluster.submit(limited(HOUR, nodes=2))
    for rank in range(3):
        cluster.prepare(task(1, 1, rank))
    for rank in range(3):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    cluster.beat(20.0)
    cluster.drain("n0", deadline_s=HOUR)
    assert cluster.job(2).starts_by is not None
    assert moves(cluster, 2) == []


def test_no_gpu_is_booked_twice() -> None:
    cluster = cluster_of(0)
    for name in "abcd":
        join_with_gpus(cluster, name, 2)
    cluster.submit(part(2, time_limit_s=1000.0))
    cluster.submit(part(1, time_limit_s=100.0))
    cluster.submit(part(2, time_limit_s=1000.0, placement={"include": ["d"]}))
    for job in (1, 2, 3):
        cluster.run_gang(job)
    cluster.leave("c")
    # Both wait for c, which may not come back, so neither has a promise.
    cluster.submit(part(1, nodes=2))
    cluster.submit(part(1, nodes=4, time_limit_s=60.0))
    assert [cluster.job(job).starts_by for job in (4, 5)] == [None, None]
    # Job 4 can start on a and the GPU of b that was booked for job 5.
    cluster.change(1, time_limit_s=20.0)
    bookings = cluster.state.plan.bookings
    assert bookings[JobId(4)].start < bookings[JobId(5)].start < bookings[JobId(4)].end
    gpus = [{uuid for it in bookings[JobId(job)].shares for uuid in it.gpus} for job in (4, 5)]
    assert not gpus[0] & gpus[1]


def test_a_job_is_held_and_released_at_once_before_the_nodes_are_back() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=2))
    again = restarted(cluster)
    again.join("n0", tasks=(task_report(task(1, 1, 0), TaskState.STARTED),))
    assert again.state.plan.restored == (2,)
    asked = [
        ChangeReceived(RequestId(number), JobId(2), "ada", hold=hold)
        for number, hold in ((1, True), (2, False))
    ]
    guarded_turns(again.state, [(it, again.now) for it in asked], again.limits)
    again.pass_time(2 * again.limits.lease_s)
    assert again.job(2).starts_by is None
    assert waits(again, 2)


def test_an_end_that_is_a_little_later_than_planned_breaks_no_promise() -> None:
    cluster = cluster_of(2)
    for job in (1, 2):
        cluster.submit(limited(1000.0))
        cluster.run_gang(job)
    cluster.submit(limited(HOUR, nodes=2))
    cluster.cancel(1)
    # From the end of job 1 to the end of job 2, to the second.
    cluster.submit(limited(1000.0 - START_S - 30 - CLEAN_S))
    assert [promised_in_s(cluster, job) for job in (3, 4)] == [1040.0, 40.0]
    cluster.beat(30.05)
    cluster.cancel(1, force=True)
    cluster.submit(limited(HOUR, nodes=2))
    assert moves(cluster, 4) == []


def test_an_elastic_gang_does_not_grow_into_a_promise_of_another_agent_of_the_machine() -> None:
    pools = {"small": PoolPolicy(), "big": PoolPolicy()}
    cluster = Cluster(pools=pools)
    for name, machine, pool in (
        ("s1", "m1", "small"),
        ("s2", "m2", "small"),
        ("b2", "m2", "big"),
        ("b3", "m3", "big"),
    ):
        devices = tuple(gpu(number, machine) for number in range(2))
        more: dict[str, Any] = {"machine_id": machine, "shared_host": True, "pool": pool}
        join_with_gpus(cluster, name, devices=devices, **more)
    cluster.submit(part(2, time_limit_s=600.0, pool="big"))
    cluster.submit(part(2, time_limit_s=1000.0, pool="big"))
    cluster.submit(part(2, nodes=2, time_limit_s=600.0, pool="big"))
    elastic: dict[str, Any] = {"max_nodes": 2, "rendezvous": Rendezvous.C10D, "pool": "small"}
    cluster.submit(part(1, **elastic))
    cluster.run_gang(4)
    for name in cluster.run_gang(1):
        cluster.finish(name)
    assert cluster.job(3).starts_by is not None
    assert [task.node for task in cluster.job(4).attempts[0].tasks] == ["s1"]
    assert moves(cluster, 3) == []


def test_the_queues_are_looked_at_when_an_attempt_is_late() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(600.0))
    cluster.submit(limited(1000.0))
    for job in (1, 2):
        cluster.run_gang(job)
    cluster.submit(limited(HOUR, nodes=3))
    promised = cluster.job(3).starts_by
    cluster.cancel(2)
    (late,) = [it.at for name, it in cluster.state.plan.ends.items() if name == 2]
    assert cluster.timers[Timer(TimerKind.QUEUE)] == late
    assert cluster.job(3).starts_by == promised


def test_bookings_that_follow_each_other_need_their_cpus_one_after_the_other() -> None:
    def held(job: int, start: float, end: float, cpus: int) -> Held:
        return Held(JobId(job), start, end, Share((f"GPU-{job}",), False, cpus, 0))

    shares = shares_at_peak([held(1, 0, 90, 2), held(2, 190, 300, 2), held(3, 10, 270, 5)], 5.0)
    assert sum(share.cpus for share in shares) == 7
    assert [share.gpus for share in shares] == [("GPU-1",), ("GPU-2",), ("GPU-3",)]
    shares = shares_at_peak([held(1, 0, 90, 2), held(2, 50, 300, 4)], 5.0)
    assert sum(share.cpus for share in shares) == 6


def test_a_promised_job_takes_a_resumed_node_although_the_start_of_one_ahead_is_unknown() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.drain("n1")
    cluster.submit(spec())
    cluster.change(2, hold=True)
    cluster.submit(spec())
    assert cluster.job(3).starts_by is not None
    again = restarted(cluster)
    again.job(2).avoid = frozenset({NodeName("n1")})
    again.join("n1")
    again.change(2, hold=False)
    assert waits(again, 2)  # n0 may be back
    again.resume("n1")
    assert not waits(again, 3)


def test_a_node_that_does_not_return_after_a_restart_holds_up_nobody_from_then_on() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.leave("n2")
    cluster.submit(limited(HOUR, nodes=3))
    assert cluster.job(2).starts_by is None
    again = restarted(cluster)
    again.join("n0", tasks=(task_report(task(1, 1, 0), TaskState.STARTED),))
    again.join("n1")
    again.submit(spec())
    assert waits(again, 3)
    again.beat(2 * again.limits.lease_s)
    assert not waits(again, 3)


def test_a_promise_that_counted_on_the_deadline_of_a_drain_moves_by_the_resume() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(HOUR, nodes=2))
    cluster.run_gang(1)
    cluster.drain("n0", deadline_s=300.0)
    cluster.submit(limited(600.0, nodes=2))
    assert promised_in_s(cluster, 2) == 300 + 30 + CLEAN_S
    cluster.resume("n0")
    assert moves(cluster, 2) == [MoveCause.RESUME]

"""A job starts on nodes that are promised to jobs behind it, if these keep their promises."""

from __future__ import annotations

from typing import Any

from muster.protocol.ids import JobId, TaskId
from tests.orchestrator.core.playbook import Cluster
from tests.orchestrator.core.scheduling.test_backfill import (
    HOUR,
    cluster_of,
    limited,
    moves,
    waits,
)

DAY = 24 * HOUR


def nodes_of(cluster: Cluster, job: int) -> list[str]:
    return [task.node for task in cluster.job(job).attempts[-1].tasks]


def finish(cluster: Cluster, tasks: list[TaskId]) -> None:
    """End a gang long before its limit."""
    cluster.beat(HOUR)
    for name in tasks:
        cluster.finish(name)


def three_wait(**last: Any) -> tuple[Cluster, list[TaskId], list[TaskId]]:
    """Job 1 runs on n0 and n1, job 2 a little later on n2; jobs 3, 4 and 5 wait in this order.

    Also returns the tasks of jobs 1 and 2.
    """
    cluster = cluster_of(3)
    cluster.submit(limited(DAY, nodes=2))
    one = cluster.run_gang(1)
    cluster.beat(20.0)
    cluster.submit(limited(DAY))
    two = cluster.run_gang(2)
    cluster.submit(limited(DAY, priority=90))
    cluster.submit(limited(DAY, priority=70))
    cluster.submit(limited(DAY, priority=10, **last))
    assert cluster.state.plan.bookings[JobId(5)].nodes == ("n2",)
    return cluster, one, two


def test_the_first_job_starts_on_a_node_that_was_promised_to_the_last() -> None:
    cluster, one, two = three_wait()
    promised = cluster.job(5).starts_by
    finish(cluster, two)
    assert [waits(cluster, job) for job in (3, 4, 5)] == [False, True, True]
    assert nodes_of(cluster, 3) == ["n2"]
    assert cluster.job(5).starts_by == promised
    finish(cluster, one)
    assert [waits(cluster, job) for job in (4, 5)] == [False, False]
    assert moves(cluster, 4) == moves(cluster, 5) == []


def test_one_whose_promise_only_that_node_can_keep_starts_before_the_first() -> None:
    cluster, _, two = three_wait(placement={"include": ["n2"]})
    finish(cluster, two)
    assert [waits(cluster, job) for job in (3, 4, 5)] == [True, True, False]
    assert moves(cluster, 3) == moves(cluster, 4) == []


def test_a_gang_starts_on_the_nodes_of_the_gang_behind_it() -> None:
    cluster = cluster_of(4)
    cluster.submit(limited(DAY, nodes=2))
    cluster.run_gang(1)
    cluster.beat(20.0)
    cluster.submit(limited(DAY, nodes=2))
    two = cluster.run_gang(2)
    cluster.submit(limited(DAY, nodes=2, priority=90))
    cluster.submit(limited(DAY, nodes=2))
    promised = cluster.job(4).starts_by
    assert cluster.state.plan.bookings[JobId(4)].nodes == ("n2", "n3")
    finish(cluster, two)
    assert nodes_of(cluster, 3) == ["n2", "n3"]
    assert cluster.job(4).starts_by == promised
    assert moves(cluster, 4) == []


def test_another_gang_is_tried_if_one_of_the_promises_cannot_be_kept() -> None:
    """n2 and n3 are idle and kept for gangs of two; only that on n3 could have other nodes."""
    cluster = cluster_of(6)
    cluster.submit(limited(DAY, nodes=3, placement={"include": ["n0", "n1", "n4"]}))
    cluster.run_gang(1)
    cluster.beat(20.0)
    cluster.submit(limited(DAY, nodes=3))
    two = cluster.run_gang(2)
    cluster.submit(limited(DAY, priority=90, placement={"exclude": ["n5"]}))
    cluster.submit(limited(DAY, nodes=2, placement={"include": ["n1", "n2"]}))
    cluster.submit(limited(DAY, nodes=2, placement={"include": ["n3", "n4", "n0"]}))
    promised = [cluster.job(job).starts_by for job in (4, 5)]
    assert [cluster.state.plan.bookings[JobId(3)].nodes] == [("n0",)]
    finish(cluster, two)
    assert nodes_of(cluster, 3) == ["n3"]
    assert [cluster.job(job).starts_by for job in (4, 5)] == promised

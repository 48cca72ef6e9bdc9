"""Explanations of backfill: which jobs went ahead of a waiting one, and why that delays nobody."""

from __future__ import annotations

from typing import Any

import pytest

from muster.http.explanation import Explanation, WentAhead
from muster.protocol.states import JobState
from muster.spec.model import JobSpec, Retry
from orchestrator.core.model.plan import Backfill, PoolPolicy
from orchestrator.core.scheduling.planned_ends import CLEAN_S, START_S
from orchestrator.core.scheduling.what_if import what_if_state
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec
from tests.orchestrator.core.scheduling.test_gpus import join as join_with_gpus
from tests.orchestrator.core.scheduling.test_gpus import part

HOUR: float = 3600.0


def cluster_of(nodes: int, mode: Backfill = Backfill.CONSERVATIVE) -> Cluster:
    cluster = Cluster(pools={"default": PoolPolicy(mode)})
    cluster.join(*(f"n{number}" for number in range(nodes)))
    return cluster


def limited(limit_s: float, nodes: int = 1, **more: Any) -> JobSpec:
    return spec(nodes=nodes, time_limit_s=limit_s, **more)


def explained(cluster: Cluster, job: int) -> Explanation:
    return explain(cluster.state, cluster.job(job), cluster.now)


def ahead_of(cluster: Cluster, job: int) -> str:
    return explained(cluster, job).attempts[-1].ahead_of


@pytest.fixture
def gang_waits() -> Cluster:
    """Job 1 runs for an hour on one of three nodes, and job 2 waits for all three."""
    cluster = cluster_of(3)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=3))
    return cluster


def test_both_jobs_explain_why_the_one_behind_started_first(gang_waits: Cluster) -> None:
    cluster = gang_waits
    assert explained(cluster, 2).went_ahead == ()
    cluster.submit(limited(60.0))
    why = "it ends by 2023-11-14T22:17:40Z, before the planned start of job 2"
    assert explained(cluster, 2).went_ahead == (WentAhead(3, ("n1",), why),)
    assert ahead_of(cluster, 3) == f"of job 2: {why}"
    assert ahead_of(cluster, 1) == ""  # it began before job 2 was submitted


def test_both_jobs_name_the_same_end_once_the_one_behind_runs(gang_waits: Cluster) -> None:
    cluster = gang_waits
    cluster.submit(limited(60.0))
    cluster.run_gang(3)
    why = "it ends by 2023-11-14T22:16:40Z, before the planned start of job 2"
    assert explained(cluster, 2).went_ahead == (WentAhead(3, ("n1",), why),)
    assert ahead_of(cluster, 3) == f"of job 2: {why}"


def test_a_gang_that_needs_other_nodes_is_not_delayed() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(600.0, placement={"include": ["n0"]}))
    cluster.submit(limited(HOUR, placement={"include": ["n0"]}))
    cluster.submit(limited(HOUR))
    why = "job 2 does not need n1"
    assert explained(cluster, 2).went_ahead == (WentAhead(3, ("n1",), why),)
    assert ahead_of(cluster, 3) == f"of job 2: {why}"


def test_two_jobs_may_share_a_node() -> None:
    cluster = cluster_of(0)
    join_with_gpus(cluster, "a")
    cluster.submit(part(6, time_limit_s=600.0))
    cluster.submit(part(4, time_limit_s=HOUR))
    cluster.submit(part(2, time_limit_s=HOUR))
    why = "there is room for both"
    assert explained(cluster, 2).went_ahead == (WentAhead(3, ("a",), why),)


def test_the_start_of_the_job_ahead_may_be_unknown() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec())
    cluster.submit(spec(nodes=2))
    cluster.submit(limited(60.0))
    (found,) = explained(cluster, 2).went_ahead
    assert found.why == "it ends by 2023-11-14T22:17:40Z, and the start of job 2 is unknown"


def test_a_job_without_a_planned_start_is_not_delayed() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    cluster.drain("n1")
    cluster.submit(limited(60.0, nodes=2))
    cluster.submit(limited(60.0))
    for task in cluster.run_gang(1):
        cluster.finish(task)
    assert ahead_of(cluster, 3) == "of job 2: job 2 has no planned start"


def test_only_jobs_that_were_behind_went_ahead(gang_waits: Cluster) -> None:
    cluster = gang_waits
    cluster.submit(limited(60.0, priority=90))
    assert explained(cluster, 2).went_ahead == ()
    assert ahead_of(cluster, 3) == ""
    cluster.submit(limited(60.0))
    cluster.change(2, priority=40)
    assert explained(cluster, 2).went_ahead == ()
    assert ahead_of(cluster, 4) == ""


def test_a_job_that_is_retried_was_overtaken_only_since() -> None:
    cluster = cluster_of(2)
    on_first: dict[str, Any] = {"placement": {"include": ["n0"]}}
    cluster.submit(limited(HOUR, retry=Retry(user=1), **on_first))
    tasks = cluster.run_gang(1)
    cluster.submit(limited(HOUR, placement={"include": ["n1"]}))
    cluster.beat(10.0)
    cluster.submit(limited(2 * HOUR, priority=90, **on_first))
    for task in tasks:
        cluster.finish(task, 1)
    cluster.beat(600.0)
    assert cluster.shown(1) is JobState.QUEUED
    assert explained(cluster, 1).went_ahead == ()
    assert ahead_of(cluster, 2) == ""


def test_the_nodes_are_free_when_the_planned_start_says_so(gang_waits: Cluster) -> None:
    """Not some seconds before, when the time limit is over."""
    found = explained(gang_waits, 2)
    free_by = {it.node: it.free_by for it in found.nodes}
    assert free_by["n0"] == found.starts_by
    gang_waits.submit(limited(60.0))
    starting = explained(gang_waits, 2)
    (at,) = [it.free_by for it in starting.nodes if it.node == "n1"]
    assert at is not None
    assert round(at.timestamp() - gang_waits.now.wall) == START_S + 60 + 30 + CLEAN_S


def test_what_if_a_gang_asked_for_fewer_nodes_is_not_bound_to_its_promise(
    gang_waits: Cluster,
) -> None:
    cluster = gang_waits
    cluster.submit(limited(60.0, nodes=2))
    cluster.run_gang(3)
    asked = what_if_state(cluster.state, cluster.job(2), 2, ())
    found = explain(*asked, cluster.now)
    assert found.starts_by is not None
    assert round(found.starts_by.timestamp() - cluster.now.wall) == 60 + 30 + CLEAN_S
    assert cluster.state.plan.promises[cluster.job(2).id] > cluster.mono + HOUR


def test_after_a_restart_no_start_is_in_the_far_future() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(HOUR, nodes=2))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=3))
    again = Cluster(cluster.replayed(), mono=cluster.mono, pools=cluster.pools)
    found = explained(again, 2)
    assert found.starts_by is None or found.starts_by.year < 2100

"""Backfill: jobs that go ahead of others, and the promises that they may not break."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId
from muster.protocol.states import JobState
from muster.spec.model import JobSpec, Rendezvous
from orchestrator.core.facts.effects import TimerKind
from orchestrator.core.facts.queue import JobPassed, QueuesPlanned, StartMoved, StartPromised
from orchestrator.core.model.plan import Backfill, MoveCause, PoolPolicy
from orchestrator.core.scheduling.planned_ends import CLEAN_S, START_S
from orchestrator.core.scheduling.planner import PASSED_MAX
from orchestrator.core.scheduling.what_if import what_if_state
from orchestrator.core.views.display import job_summary, job_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import STRICT, Cluster, spec
from tests.orchestrator.core.scheduling.test_gpus import join as join_with_gpus
from tests.orchestrator.core.scheduling.test_gpus import part

HOUR: float = 3600.0


def cluster_of(nodes: int, mode: Backfill = Backfill.CONSERVATIVE, promises: int = 100) -> Cluster:
    cluster = Cluster(pools={"default": PoolPolicy(mode, promises)})
    cluster.join(*(f"n{number}" for number in range(nodes)))
    return cluster


def limited(limit_s: float, nodes: int = 1, **more: Any) -> JobSpec:
    return spec(nodes=nodes, time_limit_s=limit_s, **more)


def waits(cluster: Cluster, job: int) -> bool:
    return cluster.shown(job) is JobState.QUEUED


def promised_in_s(cluster: Cluster, job: int) -> float | None:
    at = cluster.job(job).starts_by
    return None if at is None else round(at - cluster.now.wall, 3)


def moves(cluster: Cluster, job: int) -> list[MoveCause]:
    return [it.event.cause for it in cluster.facts if isinstance(it, StartMoved) and it.job == job]


@pytest.fixture(params=[Backfill.CONSERVATIVE, Backfill.EASY])
def gang_waits(request: pytest.FixtureRequest) -> Cluster:
    """Job 1 runs for an hour on one of three nodes, and job 2 waits for all three."""
    cluster = cluster_of(3, request.param)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=3))
    return cluster


def test_a_short_job_goes_ahead_of_a_gang_and_does_not_delay_it(gang_waits: Cluster) -> None:
    cluster = gang_waits
    before = promised_in_s(cluster, 2)
    assert before == HOUR + 30 + CLEAN_S
    cluster.submit(limited(60.0))
    assert not waits(cluster, 3)
    assert waits(cluster, 2)
    assert promised_in_s(cluster, 2) == before
    for name in cluster.run_gang(3):
        cluster.finish(name)
    for name in cluster.run_gang(1):
        cluster.finish(name)
    assert not waits(cluster, 2)
    assert cluster.job(2).starts_by is None
    assert moves(cluster, 2) == []


@pytest.mark.parametrize("limit_s", [HOUR, None])
def test_one_that_may_end_too_late_waits(gang_waits: Cluster, limit_s: float | None) -> None:
    gang_waits.submit(spec(time_limit_s=limit_s))
    assert waits(gang_waits, 3)


def test_the_grace_of_a_stop_counts(gang_waits: Cluster) -> None:
    left_s = HOUR + 30 + CLEAN_S
    fits = left_s - START_S - CLEAN_S - 30
    gang_waits.submit(limited(fits + 1))
    assert waits(gang_waits, 3)
    gang_waits.submit(limited(fits))
    assert not waits(gang_waits, 4)


def test_without_backfill_the_queue_is_strict() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0", "n1", "n2")
    cluster.submit(limited(HOUR))
    cluster.submit(limited(HOUR, nodes=3))
    cluster.submit(limited(60.0))
    assert waits(cluster, 3)
    assert cluster.job(2).starts_by is None


def test_conservative_keeps_the_second_promise_and_easy_does_not() -> None:
    """Job 3 would start on two nodes after half an hour; job 4 would be in its way."""
    for mode, goes_ahead in ((Backfill.CONSERVATIVE, False), (Backfill.EASY, True)):
        cluster = cluster_of(4, mode)
        cluster.submit(limited(1800.0, nodes=2))
        cluster.run_gang(1)
        cluster.submit(limited(HOUR, nodes=1))
        cluster.run_gang(2)
        cluster.submit(limited(HOUR, nodes=4))  # waits for job 2
        cluster.submit(limited(600.0, nodes=3))  # waits for job 1, and ends before job 2
        assert waits(cluster, 4)
        cluster.submit(limited(2400.0))
        assert (not waits(cluster, 5)) is goes_ahead
        assert (cluster.job(4).starts_by is not None) is (mode is Backfill.CONSERVATIVE)


def test_only_so_many_jobs_get_a_promise() -> None:
    cluster = cluster_of(1, promises=2)
    for _ in range(4):
        cluster.submit(limited(HOUR))
    promised = [cluster.job(n).starts_by is not None for n in (2, 3, 4)]
    assert promised == [True, True, False]
    assert len([it for it in cluster.facts if isinstance(it, StartPromised)]) == 2


def test_parts_of_a_node() -> None:
    cluster = cluster_of(0)
    join_with_gpus(cluster, "a")
    cluster.submit(part(6, time_limit_s=HOUR))
    cluster.submit(part(8, time_limit_s=HOUR))
    cluster.submit(part(2, time_limit_s=60.0))
    cluster.submit(part(2, time_limit_s=60.0))
    assert [waits(cluster, n) for n in (1, 2, 3, 4)] == [False, True, False, True]
    gpus = [cluster.job(n).attempts[0].tasks[0].gpus for n in (1, 3)]
    assert not set(gpus[0]) & set(gpus[1])


def test_behind_a_job_without_a_limit_only_those_with_one_go_ahead() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec())
    cluster.submit(spec(nodes=2))
    cluster.submit(spec())
    cluster.submit(limited(60.0))
    assert [waits(cluster, n) for n in (2, 3, 4)] == [True, True, False]
    assert cluster.job(2).starts_by is None


def test_a_job_without_a_limit_gets_a_promise_once_the_others_have_one() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.submit(spec(nodes=2))
    cluster.change(1, time_limit_s=HOUR)
    assert promised_in_s(cluster, 2) == HOUR + 30 + CLEAN_S


def test_one_that_can_never_run_or_waits_for_a_drained_node_holds_up_nobody() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(600.0))
    cluster.submit(spec(nodes=3))
    cluster.drain("n2")
    cluster.submit(spec())
    assert [waits(cluster, n) for n in (2, 3)] == [True, False]


def test_an_elastic_gang_starts_smaller_rather_than_in_the_way() -> None:
    cluster = cluster_of(4)
    cluster.submit(limited(600.0))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=2, placement={"include": ["n0", "n1"]}))
    elastic: dict[str, Any] = {"max_nodes": 4, "rendezvous": Rendezvous.C10D}
    cluster.submit(limited(HOUR, **elastic))
    assert [task.node for task in cluster.job(3).attempts[0].tasks] == ["n2", "n3"]


def test_an_elastic_gang_does_not_grow_into_a_promise() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(600.0))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=2, placement={"include": ["n0", "n1"]}))
    elastic: dict[str, Any] = {"max_nodes": 3, "rendezvous": Rendezvous.C10D}
    cluster.submit(limited(HOUR, **elastic))
    cluster.run_gang(3)
    assert [task.node for task in cluster.job(3).attempts[0].tasks] == ["n2"]
    cluster.cancel(2)
    assert "n1" in [task.node for task in cluster.job(3).attempts[0].tasks]


def test_a_promise_moves_by_a_named_event_and_only_then() -> None:
    cluster = cluster_of(3)
    cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=3))
    cluster.beat(300)
    assert moves(cluster, 2) == []
    cluster.change(1, time_limit_s=2 * HOUR)
    assert moves(cluster, 2) == [MoveCause.LIMIT]
    assert promised_in_s(cluster, 2) == 2 * HOUR + 30 + CLEAN_S - 300
    cluster.submit(limited(HOUR, nodes=3, priority=90))
    assert moves(cluster, 2)[1:] == [MoveCause.PRIORITY]
    cluster.drain("n2")
    assert moves(cluster, 2)[2:] == [MoveCause.DRAIN]
    assert cluster.job(2).starts_by is None
    notes = [text for _, text in cluster.job(2).notes.entries()]
    assert notes[0] == "promised start: by 2023-11-14T23:15:40Z"
    assert notes[1] == (
        "the promised start moved to 2023-11-15T00:15:40Z, because job 1 got a longer time limit"
    )
    assert notes[-1] == "the promised start is unknown now, because n2 was drained"


def test_a_promise_survives_a_restart_of_the_coordinator() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    tasks = cluster.run_gang(1)
    cluster.submit(limited(HOUR, nodes=2))
    promised = cluster.job(2).starts_by
    assert promised is not None
    again = Cluster(cluster.replayed(), mono=cluster.mono, pools=cluster.pools)
    assert again.job(2).starts_by == promised
    assert tasks
    assert not [it for it in again.facts if isinstance(it, StartMoved)]


def test_an_attempt_that_takes_longer_than_planned_moves_it_and_is_named() -> None:
    cluster = cluster_of(1)
    cluster.submit(limited(600.0))
    (name,) = cluster.run_gang(1)
    cluster.submit(limited(HOUR))
    cluster.beat(600 + 30 + CLEAN_S + 5)
    assert moves(cluster, 2) == [MoveCause.OVERRUN]
    assert cluster.job(2).starts_by is not None
    cluster.finish(name)
    assert not waits(cluster, 2)


def test_the_plan_is_a_function_of_the_facts() -> None:
    """Promises are in the journal, and the rest of the plan is not."""
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    cluster.submit(limited(HOUR, nodes=2))
    replayed = cluster.replayed()
    assert replayed.jobs[JobId(2)].starts_by == cluster.job(2).starts_by
    assert replayed.plan.bookings == {}


def test_promises_end_with_the_backfill_of_the_pool() -> None:
    cluster = cluster_of(2)
    cluster.submit(limited(HOUR))
    cluster.submit(limited(HOUR, nodes=2))
    assert cluster.job(2).starts_by is not None
    again = Cluster(cluster.replayed(), mono=cluster.mono, pools=STRICT)
    assert again.job(2).starts_by is None
    assert again.state.plan.bookings == {}


def test_without_backfill_there_is_no_plan_and_no_timer() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0")
    for _ in range(3):
        cluster.submit(limited(HOUR))
    assert not [it for it in cluster.facts if isinstance(it, StartPromised | QueuesPlanned)]
    assert not [it for it in cluster.timers if it.kind is TimerKind.QUEUE]


def test_explain_says_for_which_job_a_free_node_is_kept(gang_waits: Cluster) -> None:
    gang_waits.submit(limited(2 * HOUR))
    found = explain(gang_waits.state, gang_waits.job(3), gang_waits.now)
    kept = [it.reason.text for it in found.nodes if it.reason.code == "promised"]
    assert kept == ["is free, and job 2 needs it in 1h"] * 2
    first = explain(gang_waits.state, gang_waits.job(2), gang_waits.now)
    assert first.forecast == "job 1 ends on n0 by then"
    assert first.starts_by is not None
    assert round(first.starts_by.timestamp() - gang_waits.now.wall) == HOUR + 30 + CLEAN_S


def test_the_timeline_of_a_job_says_ahead_of_which_it_started(gang_waits: Cluster) -> None:
    gang_waits.submit(limited(60.0))
    steps = [
        step.text for step in job_view(gang_waits.state, gang_waits.job(3), gang_waits.now).timeline
    ]
    assert steps[:3] == [
        "submitted by ada",
        "placed on n1",
        (
            "started ahead of job 2: ends by 2023-11-14T22:17:40Z, before its promise at "
            "2023-11-14T23:15:40Z"
        ),
    ]
    gang_waits.submit(limited(60.0, nodes=3))
    assert not [
        it
        for it in job_view(gang_waits.state, gang_waits.job(1), gang_waits.now).timeline
        if "ahead" in it.text
    ]


def test_the_timeline_of_a_job_names_those_that_started_ahead_of_it(gang_waits: Cluster) -> None:
    cluster = gang_waits
    cluster.submit(limited(600.0))
    notes = [text for _, text in cluster.job(2).notes.entries()]
    assert notes[-1] == (
        "job 3 started ahead on n1: it ends by 2023-11-14T22:26:40Z, "
        "before the promise at 2023-11-14T23:15:40Z"
    )
    for number in range(4, 40):
        cluster.submit(limited(60.0))
        for name in cluster.run_gang(number):
            cluster.finish(name)
    passed = [it for it in cluster.facts if isinstance(it, JobPassed)]
    assert [it.by for it in passed] == list(range(3, 3 + PASSED_MAX))


def test_a_gang_that_goes_ahead_has_the_lease_of_its_job(gang_waits: Cluster) -> None:
    gang_waits.submit(limited(60.0, nodes=2))
    assert gang_waits.job(3).attempts[0].lease_s == gang_waits.limits.lease_s


def test_the_list_of_jobs_has_the_promised_start(gang_waits: Cluster) -> None:
    line = job_summary(gang_waits.state, gang_waits.job(2), gang_waits.now)
    assert line.starts_by is not None
    assert round(line.starts_by.timestamp() - gang_waits.now.wall) == HOUR + 30 + CLEAN_S
    running = job_summary(gang_waits.state, gang_waits.job(1), gang_waits.now)
    assert running.starts_by is None


@pytest.mark.parametrize("limit_s", [None, 2 * HOUR])
def test_explain_says_which_time_limit_would_start_a_job_now(
    gang_waits: Cluster, limit_s: float | None
) -> None:
    cluster = gang_waits
    cluster.submit(spec(nodes=1, time_limit_s=limit_s))
    hint = "would start now with a time limit of 59m (muster set 3 time_limit=59m)"
    assert explain(cluster.state, cluster.job(3), cluster.now).hints == (hint,)
    for limit, starts in ((59 * 60.0, True), (60 * 60.0, False)):
        asked = what_if_state(cluster.state, cluster.job(3), None, (), limit)
        assert explain(*asked, cluster.now).starts_now is starts
    cluster.change(3, time_limit_s=59 * 60.0)
    assert not waits(cluster, 3)


def test_a_job_with_a_higher_priority_and_another_limit_goes_to_its_new_place() -> None:
    cluster = cluster_of(1)
    for _ in range(3):
        cluster.submit(limited(HOUR))
    cluster.run_gang(1)
    cluster.change(3, priority=90, time_limit_s=1800.0)
    assert moves(cluster, 2) == [MoveCause.SET]


def test_a_node_that_was_removed_and_came_back_while_nobody_waited_is_used() -> None:
    cluster = cluster_of(1)
    cluster.submit(limited(HOUR))
    tasks = cluster.run_gang(1)
    cluster.submit(limited(HOUR))
    cluster.cancel(2)
    for name in tasks:
        cluster.finish(name)
    cluster.leave("n0")
    cluster.beat(400.0)
    cluster.remove("n0")
    cluster.join("n0")
    cluster.submit(limited(HOUR))
    assert not waits(cluster, 3)

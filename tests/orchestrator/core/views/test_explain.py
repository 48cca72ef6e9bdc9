"""The reason why a job waits: by the scheduler's own verdicts, and in agreement with it always."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from muster.http.explanation import Explanation
from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import JobSpec, Placement, Resources, Retry
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.jobs import JobHeld
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.plan import Backfill, PoolPolicy
from orchestrator.core.model.state import State
from orchestrator.core.scheduling.placement import Waiting, place
from orchestrator.core.scheduling.scheduler import next_placement, why_waiting
from orchestrator.core.scheduling.what_if import what_if_state
from orchestrator.core.views.explain import chance, explain
from tests.orchestrator.core.playbook import INVENTORY, STRICT, Cluster, spec, task
from tests.orchestrator.core.scheduling.test_rendezvous import eth


def explained(cluster: Cluster, job: int) -> Explanation:
    return explain(cluster.state, cluster.job(job), cluster.now)


def said(found: Explanation) -> dict[str, tuple[bool, str]]:
    return {verdict.node: (verdict.can, verdict.reason.text) for verdict in found.nodes}


def gpus(count: int, model: str | None = None) -> Resources:
    return Resources(count, model)


def limited(**more: Any) -> JobSpec:
    return spec(time_limit_s=3600.0, **more)


def in_s(cluster: Cluster, found: Explanation) -> float | None:
    """Return the latest start, in seconds from now."""
    if found.starts_by is None:
        return None
    return round(found.starts_by.timestamp() - cluster.now.wall, 3)


def test_each_node_says_why_not() -> None:
    cluster = Cluster()
    cluster.join("big", gpus=8, gpu_model="H100")
    cluster.join("busy", gpus=8, gpu_model="H100")
    cluster.join("small", gpus=2, gpu_model="H100")
    cluster.join("old", gpus=8, gpu_model="A100")
    cluster.join("other", gpus=8, gpu_model="H100", pool="spare")
    cluster.join("out", gpus=8, gpu_model="H100")
    cluster.join("away", gpus=8, gpu_model="H100")
    cluster.submit(limited(placement={"include": ["busy"], "exclude": []}))
    cluster.leave("away")
    excluded = Placement(exclude=("out",))
    cluster.submit(spec(nodes=2, resources=gpus(8, "H100"), placement=excluded))
    found = explained(cluster, 2)
    assert said(found) == {
        "big": (True, "is free"),
        "away": (False, "is not connected: unreachable, last message 0 s ago"),
        "busy": (False, "runs job 1"),
        "old": (False, "has GPUs of model A100, not H100"),
        "other": (False, "is in pool spare"),
        "out": (False, "is in placement.exclude"),
        "small": (False, "has 2 of the 8 GPUs wanted"),
    }
    assert (found.wanted, found.ready, found.place, found.ahead) == (2, 1, 1, ())
    assert found.hints == (
        "would start now with nodes: 1 (muster rerun 2 --set nodes=1, then muster cancel 2)",
    )
    codes = {verdict.node: verdict.reason.code for verdict in found.nodes}
    assert codes["small"] == "gpus"


def test_when_it_starts_at_the_latest() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0", "n1")
    cluster.submit(limited())
    cluster.submit(spec(time_limit_s=7200.0))
    cluster.run_gang(1)
    cluster.run_gang(2)
    cluster.beat(600)
    cluster.submit(spec("third", nodes=2))
    found = explained(cluster, 3)
    by = {verdict.node: verdict for verdict in found.nodes}
    assert by["n0"].job == 1
    assert by["n0"].free_by is not None
    assert round(by["n0"].free_by.timestamp() - cluster.now.wall) == 3000 + 30
    assert in_s(cluster, found) == 6600 + 30
    assert found.forecast == "by the time limits of the jobs before it"


def test_jobs_ahead_count_with_their_whole_time_limit() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0")
    for name in ("one", "two", "three"):
        cluster.submit(limited(name=name))
    found = explained(cluster, 3)
    assert (found.place, [ahead.id for ahead in found.ahead]) == (2, [2])
    assert in_s(cluster, found) == 2 * 3630
    assert said(found) == {"n0": (False, "runs job 1")}


def test_jobs_without_a_time_limit_are_named() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0")
    cluster.submit(spec())
    cluster.submit(spec())
    cluster.submit(spec())
    found = explained(cluster, 2)
    assert (found.starts_by, found.forecast) == (None, "unknown: job 1 has no time limit")
    assert said(found) == {"n0": (False, "runs job 1, which has no time limit")}
    third = explained(cluster, 3).forecast
    assert third == "unknown: job 2, which is before it, waits, and job 1 has no time limit"


@pytest.mark.parametrize(
    ("user", "why"),
    [("ada", "waits for a drained node to be resumed: n1 (ana)"), ("bob", "waits")],
)
def test_what_anothers_job_waits_for_is_not_said(user: str, why: str) -> None:
    cluster = Cluster(pools=STRICT)
    for name in ("n0", "n1"):
        cluster.join(name)
    cluster.drain("n1")
    cluster.submit(spec(placement=Placement(include=("n1",))))
    cluster.submit(spec(), user=user)
    assert explained(cluster, 2).forecast == f"unknown: job 1, which is before it, {why}"


def test_a_free_node_is_for_who_is_first() -> None:
    cluster = Cluster(pools=STRICT)
    cluster.join("n0", "n1")
    cluster.submit(limited())
    cluster.submit(spec("wide", nodes=2))
    cluster.submit(spec("narrow"))
    found = explained(cluster, 3)
    assert said(found)["n1"] == (False, "is free, but job 2 is before it in the queue")
    assert found.hints == ()
    assert not found.starts_now


def test_a_node_that_is_away_says_since_when_and_what_it_has() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.leave("n0")
    cluster.pass_time(40)
    cluster.submit(spec("second", nodes=2))
    text = said(explained(cluster, 2))["n0"][1]
    assert text.startswith("is not connected: unreachable; its jobs may continue")
    assert text.endswith(", last message 40 s ago, has job 1, which has no time limit")


def test_a_node_that_is_away_has_no_time_at_which_it_is_free() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(time_limit_s=3600.0))
    cluster.run_gang(1)
    cluster.submit(spec("second", nodes=2))
    before = {node.node: node.free_by for node in explained(cluster, 2).nodes}
    cluster.leave("n0")
    cluster.pass_time(40)
    after = {node.node: node.free_by for node in explained(cluster, 2).nodes}
    assert (before["n0"] is None, after["n0"]) == (False, None)


def test_a_held_job_says_what_a_release_would_do() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(limited())
    cluster.submit(spec("second"))
    cluster.change(2, hold=True, reason="data")
    (name,) = cluster.run_gang(1)
    cluster.finish(name)
    found = explained(cluster, 2)
    assert (found.text, found.place) == ("held by ada: data", None)
    assert found.hints == ("would start now if released: muster release 2",)


def test_no_hint_says_that_a_job_would_start_while_placing_is_held() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(limited())
    cluster.submit(spec("second", nodes=2))
    cluster.submit(spec("third"))
    cluster.change(3, hold=True)
    assert explained(cluster, 2).hints
    cluster.state.awaited = {NodeName("gone")}
    assert [explained(cluster, job).hints for job in (2, 3)] == [(), ()]


@pytest.mark.parametrize("pools", [STRICT, {"default": PoolPolicy()}], ids=["strict", "backfill"])
def test_a_rerun_with_fewer_nodes_is_behind_all_others(pools: dict[str, PoolPolicy]) -> None:
    cluster = Cluster(pools=pools)
    cluster.join("n0", "n1", "n2")
    cluster.submit(limited())
    cluster.run_gang(1)
    cluster.submit(limited(nodes=3))
    assert explained(cluster, 2).hints == (
        "would start now with nodes: 2 (muster rerun 2 --set nodes=2, then muster cancel 2)",
    )
    cluster.submit(spec("third", nodes=3))
    assert explained(cluster, 2).hints == ()


def test_a_held_job_that_would_go_before_promises_behind_it_is_said_to_start() -> None:
    cluster = Cluster(pools={"default": PoolPolicy()})
    cluster.join("n0", "n1")
    cluster.submit(limited())
    cluster.run_gang(1)
    cluster.drain("n1")
    cluster.submit(spec("second"))
    cluster.change(2, hold=True)
    cluster.resume("n1")
    cluster.submit(limited(nodes=2))
    assert cluster.job(3).starts_by is not None
    found = explained(cluster, 2)
    assert found.hints == ("would start now if released: muster release 2",)
    assert (found.forecast, in_s(cluster, found)) == ("its nodes are free, were it released now", 0)


def test_nothing_starts_now_where_the_coordinator_s_disk_is_full() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    cluster.submit(spec())
    cluster.turn(s.DiskSpaceChecked("/var/lib/muster is full"))
    (name,) = cluster.run_gang(1)
    cluster.finish(name)
    found = explained(cluster, 2)
    assert not found.starts_now
    assert found.text == "no job is started: /var/lib/muster is full"
    assert found.forecast == "unknown: no job is started: /var/lib/muster is full"
    assert in_s(cluster, found) is None
    cluster.turn(s.DiskSpaceChecked(""))
    assert cluster.job(2).attempts


def test_a_job_that_no_longer_fits_says_never() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", gpus=8)
    cluster.submit(limited(nodes=2))
    cluster.submit(spec("second", nodes=2, resources=gpus(8)))
    (first, second) = cluster.run_gang(1)
    cluster.finish(first)
    cluster.join("n1", gpus=4)
    cluster.finish(second)
    found = explained(cluster, 2)
    assert found.text.startswith("cannot start: it needs 2 nodes and 1 of the 2 known can run it")
    assert said(found)["n1"] == (False, "has 4 of the 8 GPUs wanted")


@pytest.mark.parametrize(
    ("pools", "so"),
    [
        (
            STRICT,
            "; the others wait until it is held (muster hold 2), cancelled, or fits again",
        ),
        ({}, ""),
    ],
    ids=["strict", "backfill"],
)
def test_a_job_that_no_longer_fits_says_so_in_every_list_and_to_jobs_behind_it(
    pools: dict[str, PoolPolicy], so: str
) -> None:
    cluster = Cluster(pools=pools)
    cluster.join("n0", gpus=8)
    cluster.submit(spec())
    cluster.submit(spec("second", resources=gpus(8)))
    cluster.submit(spec("third"))
    cluster.join("n0", gpus=7, tasks=(TaskReport(task(1, 1, 0), TaskState.ASSIGNED),))
    cannot = (
        "cannot start: it needs 1 node and 0 of the 1 known can run it: "
        "n0 has 7 of the 8 GPUs wanted"
    )
    assert why_waiting(cluster.state, cluster.job(2)) == cannot
    assert explained(cluster, 2).text == cannot
    assert why_waiting(cluster.state, cluster.job(3)) == (
        f"1 ahead in pool default; first is job 2 (priority 50), which {cannot}{so}"
    )


def test_nodes_that_share_no_network() -> None:
    cluster = Cluster()
    cluster.join("n0", interfaces=eth("e0", "10.0.0.1/24"))
    cluster.join("n1", interfaces=eth("e0", "10.0.0.2/24"))
    cluster.submit(limited(nodes=2))
    cluster.submit(spec("second", nodes=2))
    names = cluster.run_gang(1)
    cluster.rewire("n1", eth("e0", "10.9.0.2/24"))
    for name in names:
        cluster.finish(name)
    found = explained(cluster, 2)
    assert not found.starts_now
    assert {verdict.reason.code for verdict in found.nodes} == {"network"}


def test_the_nodes_the_reasons_and_the_end_of_each_attempt() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", "n2")
    cluster.submit(spec(nodes=2, retry=Retry(user=1, backoff_s=5.0)))
    first, second = cluster.run_gang(1)
    running = explained(cluster, 1)
    assert running.text.startswith("RUNNING: on n0, n1")
    (story,) = running.attempts
    assert story.nodes == ("n0", "n1")
    assert story.placement_reason.startswith("of 3 free nodes that fit, those with the fewest GPUs")
    cluster.end(second, ExitStatus(3))
    cluster.clean(first)
    cluster.clean(second, exit=ExitStatus(3))
    assert explained(cluster, 1).attempts[0].then == "retried: attempt 2"
    cluster.beat(6)
    for name in cluster.run_gang(1, 2):
        cluster.finish(name)
    done = explained(cluster, 1)
    assert [story.then for story in done.attempts] == [
        "retried: attempt 2",
        "the job ended after 2 attempts: SUCCEEDED, exit code 0",
    ]
    assert "exited with code 3" in done.attempts[0].ended


NODES = st.lists(
    st.tuples(
        st.sampled_from((0, 2, 4, 8)),
        st.sampled_from(("H100", "A100")),
        st.sampled_from(("default", "default", "other")),
        st.sampled_from((1, 1, 1, 2)),  # the subnet
        st.booleans(),  # connected
    ),
    max_size=6,
)
JOBS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from((None, 2, 8)),
        st.sampled_from((None, "H100")),
        st.sampled_from(("default", "default", "other")),
        st.sampled_from((10, 50, 90)),
        st.sets(st.integers(0, 5), max_size=2),  # excluded
        st.booleans(),  # held
        st.sampled_from((None, 600.0)),
    ),
    max_size=6,
)


def state_of(nodes: list[Any], jobs: list[Any], taken: set[int], avoid: set[int]) -> State:
    """Make a state that no turn leaves behind: jobs that could be placed and have not been yet."""
    state = State()
    pools = {it[2]: PoolPolicy(Backfill.OFF) for it in (*nodes, *jobs)}
    apply(state, cf.EpochStarted(1, "here", pools=pools), 0.0)
    for number, (gpus_there, model, pool, subnet, connected) in enumerate(nodes):
        cluster_node = NodeName(f"n{number}")
        inventory = {
            "gpus": gpus_there,
            "gpu_model": model,
            "pool": pool,
            "interfaces": eth("e0", f"10.{subnet}.0.{number + 1}/24"),
        }
        described = type(INVENTORY)("10.0.0.1", f"m{number}", **inventory)
        apply(state, cf.NodeRegistered(cluster_node, "id", "b", "v", described), 0.0)
        if connected:
            fact = lf.NodeConnected(cluster_node, number + 1, "", 1.0, 100.0)  # type: ignore[arg-type]
            apply(state, fact, 0.0)
    holder = spec("holder", time_limit_s=60.0)
    apply(state, f.JobSubmitted(JobId(1), holder, "ada"), 0.0)
    held = tuple(NodeName(f"n{number}") for number in sorted(taken) if number < len(nodes))
    if held:
        apply(state, f.AttemptPlaced(JobId(1), 1, held), 0.0)
    else:
        apply(state, f.JobHeld(JobId(1), "ada"), 0.0)
    for number, it in enumerate(jobs, 2):
        wanted, count, model, pool, priority, excluded, hold, limit_s = it
        made = spec(
            f"job-{number}",
            nodes=wanted,
            resources=Resources(count, model if count else None),
            pool=pool,
            priority=priority,
            placement=Placement(exclude=tuple(f"n{name}" for name in sorted(excluded))),
            time_limit_s=limit_s,
        )
        apply(state, f.JobSubmitted(JobId(number), made, "ada"), 0.0)
        state.jobs[JobId(number)].avoid = frozenset(NodeName(f"n{name}") for name in avoid)
        if hold:
            apply(state, f.JobHeld(JobId(number), "ada"), 0.0)
    return state


@settings(max_examples=150, deadline=None)
@given(NODES, JOBS, st.sets(st.integers(0, 5), max_size=3), st.sets(st.integers(0, 5), max_size=2))
def test_it_says_starts_now_of_those_that_the_scheduler_places_and_of_no_other(
    nodes: list[Any], jobs: list[Any], taken: set[int], avoid: set[int]
) -> None:
    state = state_of(nodes, jobs, taken, avoid)
    now = Cluster().now
    for job in [job for job in state.jobs.values() if job.phase is JobPhase.QUEUED]:
        found = explain(state, job, now)
        # The queue of its pool alone: the scheduler takes pools in any order.
        alone = deepcopy(state)
        alone.queues = {job.spec.pool: alone.queues[job.spec.pool]}
        placed = next_placement(alone)
        assert not isinstance(placed, JobHeld)
        starts = placed is not None and placed.job == job.id
        assert found.starts_now == starts
        able = {verdict.node for verdict in found.nodes if verdict.can}
        if placed is not None and starts:
            assert set(placed.nodes) <= able
            assert found.forecast == "now"
        elif found.place == 1:
            # Every node that says yes could be had, and there are too few of them.
            assert len(able) < job.spec.nodes
        else:
            assert not able
        assert isinstance(place(state, job), Waiting) == (not chance(state, job, now).found.gang)


@settings(max_examples=60, deadline=None)
@given(NODES, JOBS, st.sets(st.integers(0, 5), max_size=3))
def test_a_job_explained_as_starting_now_does_start(
    nodes: list[Any], jobs: list[Any], taken: set[int]
) -> None:
    state = state_of(nodes, jobs, taken, set())
    now = Cluster().now
    for job in [job for job in state.jobs.values() if job.phase is JobPhase.QUEUED]:
        found = explain(state, job, now)
        for hint in found.hints:
            trial = deepcopy(state)
            trial.queues = {job.spec.pool: trial.queues[job.spec.pool]}
            if "with nodes" in hint:
                wanted = int(hint.partition("nodes: ")[2].partition(" ")[0])
                smaller = trial.jobs[job.id]
                smaller.spec = spec(
                    "smaller",
                    nodes=wanted,
                    resources=job.spec.resources,
                    pool=job.spec.pool,
                    priority=job.spec.priority,
                    placement=job.spec.placement,
                )
            placed = next_placement(trial)
            assert placed is not None, hint
            assert placed.job == job.id, hint


def what_if(cluster: Cluster, job: int, nodes: int | None, *drained: str) -> Explanation:
    names = [NodeName(name) for name in drained]
    there = what_if_state(cluster.state, cluster.job(job), nodes, names)
    return explain(*there, cluster.now)


def test_what_if_it_asked_for_fewer_nodes_or_one_were_drained() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1", "n2")
    cluster.submit(limited())
    cluster.run_gang(1)
    cluster.submit(spec("second", nodes=3))
    before = deepcopy(cluster.state)
    assert not explained(cluster, 2).starts_now
    fewer = what_if(cluster, 2, 2)
    assert (fewer.wanted, fewer.ready, fewer.starts_now) == (2, 2, True)
    both = what_if(cluster, 2, 2, "n2")
    assert (both.wanted, both.starts_now) == (2, False)
    assert said(both)["n2"] == (False, "would be drained")
    never = what_if(cluster, 2, 4)
    assert never.text.startswith("cannot start: ")
    assert cluster.state == before, "nothing of it is so"
    # The real drain has the predicted result.
    cluster.drain("n2")
    assert {n: can for n, (can, _) in said(explained(cluster, 2)).items()} == {
        n: can for n, (can, _) in said(what_if(cluster, 2, None, "n2")).items()
    }


@settings(max_examples=100, deadline=None)
@given(NODES, JOBS, st.sets(st.integers(0, 5), max_size=3), st.integers(1, 6))
def test_a_what_if_state_is_judged_like_a_real_one(
    nodes: list[Any], jobs: list[Any], taken: set[int], wanted: int
) -> None:
    state = state_of(nodes, jobs, taken, set())
    now = Cluster().now
    for job in [job for job in state.jobs.values() if job.phase is JobPhase.QUEUED]:
        found = explain(*what_if_state(state, job, wanted, ()), now)
        alone = deepcopy(state)
        alone.queues = {job.spec.pool: alone.queues[job.spec.pool]}
        there = alone.jobs[job.id]
        there.spec = structs.replace(there.spec, nodes=wanted, max_nodes=None)
        placed = next_placement(alone)
        assert found.starts_now == (placed is not None and placed.job == job.id)
        assert found.wanted == wanted

"""Checkpoints: which are news, drains that wait for one, and jobs that make no progress."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.tasks import Checkpoint
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.views.display import job_view, node_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

FOLDER = "/data/ckpt"


def running(nodes: int = 2, **more: Any) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    cluster.join(*(f"n{number}" for number in range(nodes)))
    cluster.submit(spec(nodes=nodes, **{"checkpoint_dir": FOLDER, **more}))
    return cluster, cluster.run_gang(1)


def saw(cluster: Cluster, one: TaskId, name: str, fresh: int = 1, ago_s: float = 0.0) -> None:
    seen = Checkpoint(fresh, name, ago_s)
    cluster.report(one, TaskState.STARTED, prepared=prepared(), listening=True, checkpoint=seen)


def noted(cluster: Cluster) -> list[tuple[int, str]]:
    facts = [fact for fact in cluster.facts if isinstance(fact, f.TaskCheckpointed)]
    return [(fact.rank, fact.name) for fact in facts]


def fail(cluster: Cluster, attempt: int, nodes: int = 2) -> None:
    for rank in range(nodes):
        cluster.end(task(1, attempt, rank), ExitStatus(1))
        cluster.clean(task(1, attempt, rank))
    cluster.beat(31)


def test_a_node_learns_where_they_are() -> None:
    cluster, _ = running()
    (command,) = cluster.commands("n0", PrepareTask)
    assert isinstance(command, PrepareTask)
    assert command.checkpoint_dir == FOLDER


def test_a_single_report_of_a_shared_file_is_enough() -> None:
    cluster, (first, second) = running()
    saw(cluster, first, "step-1")
    saw(cluster, second, "step-1")
    saw(cluster, first, "step-1")
    assert noted(cluster) == [(0, "step-1")]
    saw(cluster, second, "step-2", fresh=2)
    saw(cluster, first, "step-2", fresh=2)
    assert noted(cluster) == [(0, "step-1"), (1, "step-2")]


def test_a_file_that_is_written_again_is_another_one() -> None:
    cluster, (first, _) = running()
    for fresh in (1, 2, 3):
        saw(cluster, first, "last.pt", fresh)
        cluster.beat(10)
    assert noted(cluster) == [(0, "last.pt")] * 3


def test_a_node_that_reports_them_without_pause_fills_no_journal() -> None:
    cluster, (first, _) = running()
    for fresh in range(1000):
        saw(cluster, first, f"step-{fresh}", fresh)
    assert noted(cluster) == [(0, "step-0")]
    cluster.turn(s.DiskSpaceChecked("/var is full"))
    cluster.beat(10)
    saw(cluster, first, "step-1000", 1000)
    assert noted(cluster) == [(0, "step-0")]
    cluster.turn(s.DiskSpaceChecked(""))
    saw(cluster, first, "step-1001", 1001)
    assert noted(cluster) == [(0, "step-0"), (0, "step-1001")]


def test_a_job_that_names_no_folder_has_none() -> None:
    cluster, (first, _) = running(checkpoint_dir=None)
    saw(cluster, first, "step-1")
    assert noted(cluster) == []


def test_any_age_can_be_shown() -> None:
    """An age of 1e308 s made the list of jobs fail for everybody."""
    cluster, (first, _) = running()
    saw(cluster, first, "step-1", ago_s=1e308)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert "last checkpoint" in view.reason.text
    json.encode(view)


def test_users_see_the_last_one_and_how_old_it_is() -> None:
    cluster, (first, _) = running()
    text = job_view(cluster.state, cluster.job(1), cluster.now).reason.text
    assert text == "on n0, n1; no checkpoint yet"
    saw(cluster, first, "step-12000/model.pt", ago_s=20.0)
    cluster.beat(230)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.reason.text == "on n0, n1; last checkpoint 4m ago: step-12000/model.pt"
    last = view.attempts[-1].checkpoint
    assert last is not None
    assert (last.name, last.node) == ("step-12000/model.pt", "n0")


def test_it_is_in_the_journal() -> None:
    cluster, (first, _) = running()
    saw(cluster, first, "step-1")
    assert cluster.replayed().jobs[cluster.job(1).id].attempts[0].checkpoint is not None


def test_three_attempts_without_a_checkpoint_are_enough() -> None:
    cluster, _ = running(retry=Retry(user=9, backoff_s=1.0))
    for attempt in (1, 2):
        fail(cluster, attempt)
        assert cluster.shown(1) is JobState.PREPARING
        cluster.run_gang(1, attempt + 1)
    fail(cluster, 3)
    assert cluster.shown(1) is JobState.FAILED
    text = cluster.cause(1).text
    assert f"no progress: 3 attempts wrote no checkpoint to {FOLDER}" in text
    assert cluster.cause(1).code is CauseCode.RANK_FAILED


def test_checkpoints_seen_by_a_lost_node_are_progress() -> None:
    cluster, _ = running(retry=Retry(user=9, infra=9, backoff_s=1.0))
    fail(cluster, 1)
    cluster.run_gang(1, 2)
    saw(cluster, task(1, 2, 1), "step-1")
    cluster.leave("n1")
    cluster.join("n1")
    cluster.end(task(1, 2, 0), ExitStatus(signal=15), stopped_by="stop")
    cluster.clean(task(1, 2, 0))
    cluster.beat(31)
    cluster.run_gang(1, 3)
    fail(cluster, 3)
    assert cluster.shown(1) is JobState.PREPARING


def test_a_job_that_does_not_say_where_they_are_is_tried_as_often_as_it_asked() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(retry=Retry(user=4, backoff_s=1.0)))
    for attempt in (1, 2, 3, 4):
        cluster.run_gang(1, attempt)
        fail(cluster, attempt, nodes=1)
    assert cluster.shown(1) is JobState.PREPARING


def test_a_drain_waits_for_the_next_checkpoint() -> None:
    cluster, (first, second) = running()
    saw(cluster, first, "step-1")
    cluster.drain("n1", after_checkpoint=True)
    assert cluster.shown(1) is JobState.RUNNING
    view = node_view(cluster.node("n1"), cluster.now)
    assert "running jobs leave after their next checkpoint" in view.state.text
    assert view.drain is not None
    assert view.drain.after_checkpoint
    saw(cluster, first, "step-1")
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(10)
    saw(cluster, first, "step-2", fresh=2)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.DRAINED, "n1")
    assert second == task(1, 1, 1)


def test_a_job_that_ends_well_with_its_last_checkpoint_has_ended_well() -> None:
    """Both come in one report, of a node that was away."""
    cluster, (first, second) = running()
    cluster.drain("n1", after_checkpoint=True)
    cluster.end(first, ExitStatus(0))
    cluster.report(
        second,
        TaskState.EXITED,
        prepared=prepared(),
        exit=ExitStatus(0),
        checkpoint=Checkpoint(1, "last"),
    )
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.COMPLETED


def test_its_deadline_bounds_that() -> None:
    cluster, _ = running()
    cluster.drain("n1", after_checkpoint=True, deadline_s=60.0)
    cluster.beat(59)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.beat(2)
    assert cluster.shown(1) is JobState.STOPPING


def test_drains_do_not_count_as_tries() -> None:
    cluster = Cluster()
    cluster.join(*(f"n{number}" for number in range(4)))
    cluster.submit(spec(checkpoint_dir=FOLDER, retry=Retry(user=1, backoff_s=1.0)))
    for attempt in (1, 2, 3):
        cluster.run_gang(1, attempt)
        node = cluster.job(1).attempts[-1].tasks[0].node
        cluster.drain(node, deadline_s=0.0)
        cluster.clean(task(1, attempt, 0))
        cluster.beat(2)
    cluster.run_gang(1, 4)
    fail(cluster, 4, nodes=1)
    assert cluster.job(1).cause is None
    assert cluster.job(1).user_used == 1


@pytest.mark.parametrize("name", ["x" * 5000, "step\u202e"])
def test_a_name_is_kept_within_bounds(name: str) -> None:
    cluster, (first, _) = running()
    saw(cluster, first, name)
    assert len(noted(cluster)[0][1]) <= 200

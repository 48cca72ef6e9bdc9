"""A job for users: one state, a reason and an exit code, from phases and outcome."""

from __future__ import annotations

import pytest

from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job
from orchestrator.core.model.status import job_state
from orchestrator.core.views.display import job_summary
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

NO_RETRY = Retry(infra=0)


def running(nodes: int = 2) -> Cluster:
    cluster = Cluster()
    cluster.join(*(f"n{number}" for number in range(nodes)))
    cluster.submit(spec(nodes=nodes, retry=NO_RETRY))
    cluster.run_gang(1)
    return cluster


def test_it_runs_once_every_node_has_said_so() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.leave("n1")
    cluster.submit(spec(nodes=2))
    assert cluster.shown(1) is JobState.QUEUED
    cluster.join("n1")
    assert cluster.shown(1) is JobState.PREPARING
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    for rank in (0, 1):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    assert cluster.shown(1) is JobState.PREPARING
    cluster.report(task(1, 1, 0), TaskState.STARTED, prepared=prepared(), listening=True)
    assert cluster.shown(1) is JobState.PREPARING
    cluster.report(task(1, 1, 1), TaskState.STARTED, prepared=prepared())
    assert cluster.shown(1) is JobState.RUNNING


def test_it_stops_until_every_node_is_clean() -> None:
    cluster = running()
    cluster.cancel(1)
    cluster.end(task(1, 1, 0), ExitStatus(None, 15), "cancel")
    cluster.clean(task(1, 1, 0))
    assert cluster.shown(1) is JobState.STOPPING
    cluster.end(task(1, 1, 1), ExitStatus(None, 15), "cancel")
    assert cluster.shown(1) is JobState.STOPPING
    cluster.clean(task(1, 1, 1))
    assert cluster.shown(1) is JobState.CANCELLED


def test_a_node_that_cannot_be_reached_is_presumed_to_run_until_its_lease_is_over() -> None:
    cluster = running()
    cluster.leave("n1")
    cluster.beat(40)
    shown = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert shown.state is JobState.RUNNING
    assert shown.reason.code == "unreachable"
    assert shown.reason.text == (
        "n1 unreachable for 40 s, job presumed running; the task on n1 counts as ended in 287 s "
        "(lease 300 s and margin 27 s after the last answer), once it is back, or after: "
        "muster node lost n1"
    )


def test_a_job_that_stops_says_for_which_node_it_waits_and_still_why_it_stops() -> None:
    cluster = running()
    cluster.leave("n1")
    cluster.beat(40)
    cluster.cancel(1)
    cluster.end(task(1, 1, 0), ExitStatus(None, 15), "cancel")
    cluster.clean(task(1, 1, 0))
    shown = job_summary(cluster.state, cluster.job(1), cluster.now)
    assert shown.state is JobState.STOPPING
    assert shown.reason.code == "unreachable"
    assert shown.reason.text == (
        "cancelled by ada; 1 of 2 nodes clean; n1 unreachable for 40 s; the task on n1 counts as "
        "ended in 287 s (lease 300 s and margin 27 s after the last answer), once it is back, or "
        "after: muster node lost n1"
    )
    cluster.beat(1000)
    assert cluster.shown(1) is JobState.CANCELLED


@pytest.mark.parametrize(
    ("outcome", "code", "state", "exit_code"),
    [
        (Outcome.SUCCESS, CauseCode.COMPLETED, JobState.SUCCEEDED, 0),
        (Outcome.USER, CauseCode.RANK_FAILED, JobState.FAILED, 17),
        (Outcome.INFRA, CauseCode.RDMA_NOT_USED, JobState.FAILED, 122),
        (Outcome.INFRA, CauseCode.NODE_LOST, JobState.LOST, 122),
        (Outcome.NEVER_STARTED, CauseCode.PREPARE_REFUSED, JobState.FAILED, 123),
        (Outcome.TIME_LIMIT, CauseCode.TIME_LIMIT, JobState.TIMEOUT, 124),
        (Outcome.CANCELLED, CauseCode.CANCELLED, JobState.CANCELLED, 121),
    ],
)
def test_every_outcome_is_a_state_and_a_code(
    outcome: Outcome, code: CauseCode, state: JobState, exit_code: int
) -> None:
    job = Job(running().job(1).id, spec(), "ada", 0.0, phase=JobPhase.ENDED)
    job.cause = Cause(code, outcome, "because", exit=ExitStatus(17))
    assert (job_state(job), job.cause.exit_code) == (state, exit_code)


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (JobPhase.QUEUED, JobState.QUEUED),
        (JobPhase.HELD, JobState.HELD),
        (JobPhase.BACKOFF, JobState.RETRYING),
    ],
)
def test_a_job_that_waits_is_shown_as_it_waits(phase: JobPhase, state: JobState) -> None:
    assert job_state(Job(running().job(1).id, spec(), "ada", 0.0, phase=phase)) is state

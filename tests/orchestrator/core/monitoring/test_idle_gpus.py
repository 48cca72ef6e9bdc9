"""Jobs that do not use their GPUs: judged over all nodes and the whole time, warned, stopped."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.gpus import IdleGpus
from muster.protocol.outcome import EXIT_CANCELLED, CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from orchestrator.api.event_text import event_view
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.views.display import job_view
from orchestrator.webhooks.payload import message
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task_report

HOOK = ("https://hooks.example.com/x",)
NOTIFY = {"gpu_util_below": 5, "for_s": 3600.0, "action": "notify"}
STOP = {"gpu_util_below": 5, "for_s": 3600.0, "action": "stop"}
WARNING = (
    "all its GPUs have been used less than 5 % for 30m: "
    "it is stopped if they stay idle for 30m more"
)


def running(
    idle: dict[str, Any] | None, nodes: int = 2, **more: Any
) -> tuple[Cluster, list[TaskId]]:
    cluster = Cluster()
    cluster.join(*(f"n{number}" for number in range(nodes)))
    cluster.submit(spec(nodes=nodes, notify=HOOK, idle=idle, **more))
    return cluster, cluster.run_gang(1)


def say(cluster: Cluster, one: TaskId, idle_s: float | None) -> None:
    cluster.report(one, TaskState.STARTED, prepared=prepared(), listening=True, idle_s=idle_s)


def judged(cluster: Cluster) -> list[str]:
    return [fact.text for fact in cluster.facts if isinstance(fact, idf.IdleJudged)]


def webhook_events(cluster: Cluster) -> list[nf.WebhookEvent]:
    return [fact.event for fact in cluster.facts if isinstance(fact, nf.WebhookQueued)]


def stops(cluster: Cluster) -> list[f.StopRequested]:
    return [fact for fact in cluster.facts if isinstance(fact, f.StopRequested)]


def test_nodes_are_asked_only_where_the_job_wants_it() -> None:
    cluster, _ = running(NOTIFY)
    (asked,) = cluster.commands("n0", PrepareTask)
    assert isinstance(asked, PrepareTask)
    assert asked.idle == IdleGpus(5, 1800.0)
    cluster, gang = running(None)
    (asked,) = cluster.commands("n0", PrepareTask)
    assert isinstance(asked, PrepareTask)
    assert asked.idle is None
    for one in gang:
        say(cluster, one, 1e6)
    cluster.beat(10)
    assert judged(cluster) == []


def test_all_nodes_for_the_whole_time_are_reported_once() -> None:
    cluster, gang = running(NOTIFY)
    cluster.beat(1800)
    for one in gang:
        say(cluster, one, 1800.0)
    cluster.beat(1795)
    assert judged(cluster) == []
    cluster.beat(10)
    assert judged(cluster) == ["all its GPUs have been used less than 5 % for 1h"]
    for one in gang:
        say(cluster, one, 3605.0)
    cluster.beat(7200)
    assert webhook_events(cluster) == [nf.WebhookEvent.STARTED, nf.WebhookEvent.IDLE]
    assert stops(cluster) == []
    assert cluster.shown(1) is JobState.RUNNING
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.reason.text == "on n0, n1; all its GPUs have been used less than 5 % for 1h"
    assert check(cluster.state) == []


def test_a_webhook_is_notified_of_a_job_that_goes_on() -> None:
    cluster, gang = running(NOTIFY, nodes=1)
    cluster.beat(3600)
    say(cluster, gang[0], 3600.0)
    cluster.beat(5)
    job = cluster.job(1)
    number = job.webhooks_made
    content = message(cluster.state, job, number, job.queued_webhooks[number, 0], cluster.now)
    assert (content.event, content.attempt, content.cause) == ("idle", 1, None)
    assert content.text == "all its GPUs have been used less than 5 % for 1h"
    assert "all its GPUs have been used less than 5 % for 1h" in content.job.reason.text


def test_a_single_computing_node_is_enough() -> None:
    cluster, (first, _) = running(NOTIFY)
    cluster.beat(1800)
    say(cluster, first, 1800.0)
    cluster.beat(7200)
    assert judged(cluster) == []


def test_the_time_begins_with_the_last_of_them_and_not_before_the_run() -> None:
    cluster, (first, second) = running(NOTIFY)
    cluster.beat(2000)
    # Its setup was long, and the GPUs had nothing to do then.
    say(cluster, first, 100_000.0)
    say(cluster, second, 1900.0)
    cluster.beat(1690)
    assert judged(cluster) == []
    cluster.beat(20)
    assert len(judged(cluster)) == 1


def test_a_gpu_that_is_used_once_begins_it_anew() -> None:
    cluster, (first, second) = running(NOTIFY)
    cluster.beat(3500)
    say(cluster, first, 3500.0)
    say(cluster, second, 3500.0)
    cluster.beat(20)
    say(cluster, second, None)
    cluster.beat(200)
    assert judged(cluster) == []
    cluster.beat(1800)
    say(cluster, second, 1800.0)
    cluster.beat(1790)
    assert judged(cluster) == []
    cluster.beat(20)
    assert len(judged(cluster)) == 1


def test_a_node_that_cannot_be_reached_is_not_idle_and_its_word_holds_when_it_is_back() -> None:
    cluster, gang = running(NOTIFY)
    cluster.beat(3590)
    for one in gang:
        say(cluster, one, 3590.0)
    cluster.leave("n1")
    cluster.beat(30)
    assert judged(cluster) == []
    back = task_report(
        gang[1],
        TaskState.STARTED,
        prepared=prepared(),
        listening=True,
        running_s=3620.0,
        idle_s=3620.0,
    )
    cluster.join("n1", tasks=(back,))
    cluster.beat(1)
    assert len(judged(cluster)) == 1


def test_a_node_that_has_ended_its_part_is_not_asked() -> None:
    cluster, (first, second) = running(NOTIFY)
    cluster.end(second, ExitStatus(0))
    cluster.beat(3600)
    say(cluster, first, 3600.0)
    cluster.beat(5)
    assert len(judged(cluster)) == 1


def test_it_is_over_when_one_computes_again_and_may_be_reported_anew() -> None:
    cluster, gang = running(NOTIFY, nodes=1)
    cluster.beat(3600)
    say(cluster, gang[0], 3600.0)
    cluster.beat(5)
    say(cluster, gang[0], None)
    say(cluster, gang[0], None)
    over = [fact for fact in cluster.facts if isinstance(fact, idf.IdleOver)]
    assert len(over) == 1
    assert job_view(cluster.state, cluster.job(1), cluster.now).reason.text == "on n0"
    cluster.beat(3600)
    say(cluster, gang[0], 3600.0)
    cluster.beat(5)
    assert len(judged(cluster)) == 2


def test_a_node_that_lies_makes_no_more_verdicts() -> None:
    cluster, gang = running(NOTIFY, nodes=1)
    cluster.beat(3600)
    for _ in range(20):
        say(cluster, gang[0], 1e6)
        cluster.beat(5)
        say(cluster, gang[0], None)
    assert len(judged(cluster)) == 1
    say(cluster, gang[0], 1e6)
    cluster.beat(3600)
    assert len(judged(cluster)) == 2


def test_a_job_that_is_to_be_stopped_is_reported_half_the_time_before() -> None:
    cluster, gang = running(STOP, retry={"infra": 3, "user": 3})
    cluster.beat(1800)
    for one in gang:
        say(cluster, one, 1800.0)
    cluster.beat(1)
    assert judged(cluster) == [WARNING]
    assert webhook_events(cluster)[-1] is nf.WebhookEvent.IDLE
    cluster.beat(1780)
    assert stops(cluster) == []
    cluster.beat(20)
    (stop,) = stops(cluster)
    assert (stop.cause.code, stop.cause.outcome) == (CauseCode.IDLE, Outcome.CANCELLED)
    assert "by `idle` of the job: all its GPUs were used less than 5 % for 1h" in stop.cause.text
    for one in gang:
        cluster.end(one, ExitStatus(signal=15), stopped_by="stop")
        cluster.clean(one)
    assert cluster.shown(1) is JobState.CANCELLED
    assert cluster.cause(1).exit_code == EXIT_CANCELLED
    assert len(cluster.job(1).attempts) == 1
    assert check(cluster.state) == []


def test_a_job_that_computes_after_the_warning_goes_on() -> None:
    cluster, gang = running(STOP, nodes=1)
    cluster.beat(1800)
    say(cluster, gang[0], 1800.0)
    cluster.beat(1700)
    say(cluster, gang[0], None)
    cluster.beat(3600)
    assert stops(cluster) == []


def test_a_late_warning_still_leaves_the_other_half() -> None:
    """The coordinator was away while the time passed."""
    cluster, gang = running(STOP, nodes=1)
    cluster.beat(7200)
    say(cluster, gang[0], 7200.0)
    cluster.beat(1)
    assert judged(cluster) == [WARNING]
    cluster.beat(1700)
    assert stops(cluster) == []
    cluster.beat(110)
    assert len(stops(cluster)) == 1


def test_a_report_is_known_after_a_restart() -> None:
    cluster, gang = running(NOTIFY, nodes=1)
    cluster.beat(3600)
    say(cluster, gang[0], 3600.0)
    cluster.beat(5)
    again = cluster.replayed()
    attempt = again.jobs[cluster.job(1).id].attempts[0]
    assert attempt.idle == cluster.job(1).attempts[0].idle != ""
    assert attempt.tasks[0].idle_since is None
    assert again.idle_reported == {}


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (idf.IdleJudged(JobId(1), 1, WARNING), WARNING),
        (idf.IdleOver(JobId(1), 1), "its GPUs are no longer idle, or unreadable"),
    ],
)
def test_events_say_it(fact: f.Fact, text: str) -> None:
    view = event_view(None, 7, 1.0, fact)
    assert (view.kind, view.text) == (type(fact).__name__, f"attempt 1: {text}")

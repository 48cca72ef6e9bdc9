"""Messages for a job's webhooks, kept until each one is delivered."""

from __future__ import annotations

import pytest

from muster.protocol.ids import JobId
from orchestrator.core.engine.invariants import check
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.base import Durability
from orchestrator.core.views.display import job_view
from orchestrator.core.webhooks import outbox
from tests.orchestrator.core.playbook import Cluster, spec

HOOKS = ("https://a.example.com/secret", "https://b.example.com/x")


def webhook_events(cluster: Cluster) -> list[tuple[int, str, int]]:
    return [
        (fact.number, fact.event.value, fact.attempt)
        for fact in cluster.facts
        if isinstance(fact, nf.WebhookQueued)
    ]


def test_each_start_retry_and_the_end_are_reported() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec(notify=HOOKS, retry={"user": 1, "backoff_s": 1.0}))
    cluster.finish(cluster.run_gang(1)[0], 3)
    cluster.pass_time(2)
    cluster.finish(cluster.run_gang(1, 2)[0])
    wanted = [(1, "started", 1), (2, "retrying", 1), (3, "started", 2), (4, "ended", 2)]
    assert webhook_events(cluster) == wanted
    assert set(cluster.job(1).queued_webhooks) == {
        (n, hook) for n in (1, 2, 3, 4) for hook in (0, 1)
    }
    assert check(cluster.state) == []


def test_a_job_without_webhooks_has_nothing_to_send() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    cluster.finish(cluster.run_gang(1)[0])
    assert webhook_events(cluster) == []
    assert cluster.state.webhook_jobs == set()


def ended() -> Cluster:
    """Make a cluster whose only message is the end of a job."""
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec(notify=HOOKS[:1]))
    cluster.cancel(1, force=True)
    cluster.clean(cluster.job(1).attempts[0].tasks[0].id)
    assert webhook_events(cluster) == [(1, "ended", 1)]
    return cluster


def tell(cluster: Cluster, problem: str = "", *, over: bool = True) -> None:
    cluster.turn(s.WebhookAttempted(JobId(1), 1, 0, problem, over))


def test_problems_are_shown_and_a_restart_forgets_nothing() -> None:
    cluster = ended()
    tell(cluster, "nothing listens there", over=False)
    (shown,) = job_view(cluster.state, cluster.job(1), cluster.now).pending_webhooks
    assert (shown.to, shown.event) == ("a.example.com", "ended")
    assert shown.problem == "nothing listens there"
    again = cluster.replayed()
    assert set(again.jobs[JobId(1)].queued_webhooks) == {(1, 0)}
    assert again.webhook_jobs == {1}


def test_a_delivered_message_is_done_and_a_second_report_changes_nothing() -> None:
    cluster = ended()
    tell(cluster)
    assert cluster.job(1).queued_webhooks == {}
    assert cluster.state.webhook_jobs == set()
    facts = len(cluster.facts)
    tell(cluster, "late")
    assert len(cluster.facts) == facts
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.pending_webhooks == ()
    assert not any("webhook" in step.text for step in view.timeline)


def dropped(cluster: Cluster) -> list[tuple[int, int, int]]:
    return [
        (fact.job, fact.number, fact.hook)
        for fact in cluster.facts
        if isinstance(fact, nf.WebhookSettled) and fact.dropped
    ]


def test_the_oldest_notices_of_a_job_are_dropped_where_too_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "OF_JOB_MAX", 4)
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec(notify=HOOKS, retry={"user": 1, "backoff_s": 1.0}))
    cluster.finish(cluster.run_gang(1)[0], 3)
    cluster.pass_time(2)
    cluster.finish(cluster.run_gang(1, 2)[0])
    assert set(cluster.job(1).queued_webhooks) == {(n, hook) for n in (3, 4) for hook in (0, 1)}
    assert dropped(cluster) == [(1, n, hook) for n in (1, 2) for hook in (0, 1)]
    assert check(cluster.state) == []
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    (step,) = [step.text for step in view.timeline if "a.example.com" in step.text][:1]
    assert step == (
        "webhook a.example.com was not notified that attempt 1 has started: it was dropped, "
        "because 4 notices of this job waited"
    )
    again = cluster.replayed()
    assert again.queued_webhooks == cluster.state.queued_webhooks
    assert check(again) == []


@pytest.mark.parametrize("bound", ["OF_USER_MAX", "SPEC_BYTES_MAX"])
def test_the_oldest_notices_of_a_user_are_dropped_where_too_many_wait(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())  # it has the node, so that the others are queued
    for user in ("bob", "ada", "ada", "ada"):
        cluster.submit(spec(notify=HOOKS), user=user)
    of_two = 4 if bound == "OF_USER_MAX" else 2 * cluster.job(2).spec_bytes
    monkeypatch.setattr(outbox, bound, of_two)
    for job in (2, 3, 4, 5):
        cluster.cancel(job)
    assert dropped(cluster) == [(3, 1, 0), (3, 1, 1)]
    assert {number for number, job in cluster.state.jobs.items() if job.queued_webhooks} == {
        2,
        4,
        5,
    }
    assert check(cluster.state) == []
    assert cluster.replayed().queued_webhooks == cluster.state.queued_webhooks
    for number in (4, 5):
        for hook in (0, 1):
            cluster.turn(s.WebhookAttempted(JobId(number), 1, hook, ""))
    assert set(cluster.state.queued_webhooks) == {"bob"}


def test_nothing_is_dropped_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "OF_JOB_MAX", 1)
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec(notify=HOOKS))
    cluster.state.disk_full = "no room"
    cluster.cancel(1, force=True)
    assert dropped(cluster) == []


def test_an_undelivered_message_is_in_the_timeline_without_its_secret() -> None:
    cluster = ended()
    tell(cluster, "it answered 404")
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    (step,) = [step.text for step in view.timeline if "webhook" in step.text]
    assert step == "webhook a.example.com was not notified of the end: it answered 404"
    assert "secret" not in step
    facts = [x for x in cluster.facts if getattr(x, "job", None) == 1]
    kept = [(x, 1.0) for x in facts if x.durability is not Durability.EPHEMERAL]
    assert replay_job(kept).queued_webhooks == {}

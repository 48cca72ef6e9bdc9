"""Inputs that cannot be decided because of a bug: refused, on record, and no crash loop."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Heartbeat
from muster.protocol.states import JobState
from orchestrator.core.engine import guarded_turn as guard
from orchestrator.core.engine.guarded_turn import TurnFailedError, guarded_turn
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.plan import PoolPolicy
from orchestrator.core.scheduling import profile, scheduler
from tests.orchestrator.core.playbook import STRICT, Cluster, spec


def broken(*_: Any) -> Any:
    raise ValueError("planted")


CANCEL = s.CancelReceived(a.RequestId(77), JobId(1), "ada")


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec())
    return cluster


def give(cluster: Cluster, received: s.Input) -> tuple[list[Any], list[a.Effect]]:
    done, _ = guarded_turn(cluster.state, received, cluster.now, cluster.limits)
    cluster.facts += done.facts
    return done.facts, done.effects


def test_a_request_that_cannot_be_decided_is_answered_and_on_record_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "decide", broken)
    facts, effects = give(cluster, CANCEL)
    assert [type(fact) for fact in facts] == [cf.InputFailed]
    assert facts[0].origin == "CancelReceived for job 1"
    assert facts[0].error.startswith("ValueError: planted at test_guarded_turn.py:")
    (answer,) = effects
    assert isinstance(answer, a.Answer)
    assert isinstance(answer.result, a.Declined)
    assert answer.result.code == "internal"
    # A repeated request does not fill the journal.
    assert give(cluster, CANCEL)[0] == []
    monkeypatch.undo()
    give(cluster, CANCEL)
    assert cluster.shown(1) is JobState.STOPPING


def test_a_report_that_cannot_be_decided_closes_its_connection_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cluster.node("a").session
    assert session is not None
    monkeypatch.setattr(guard, "decide", broken)
    _, (closed,) = give(cluster, s.ReportReceived(session, Heartbeat(cluster.mono)))
    assert isinstance(closed, a.CloseSession)
    assert closed.session == session


def test_a_timer_that_cannot_be_decided_fires_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "decide", broken)
    timer = a.Timer(a.TimerKind.NODE, node=NodeName("a"))
    _, effects = give(cluster, s.TimerFired(timer))
    assert effects == [a.SetTimer(timer, cluster.now.mono + 60.0)]


def test_inputs_of_the_coordinator_itself_are_never_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "decide", broken)
    with pytest.raises(ValueError, match="planted"):
        give(cluster, s.CoordinatorStarted(2))


def test_an_input_that_ended_two_processes_is_refused_by_the_third(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "advance", broken)
    for _ in range(2):
        with pytest.raises(TurnFailedError) as caught:
            give(cluster, CANCEL)
        assert caught.value.fact is not None
        assert caught.value.fact.ended
        # The next process has the journal, which has this and nothing else of the turn.
        cluster.facts.append(caught.value.fact)
        cluster.state = cluster.replayed()
    _, (answer,) = give(cluster, CANCEL)
    assert isinstance(answer, a.Answer)
    assert isinstance(answer.result, a.Declined)
    assert "has ended the coordinator twice" in answer.result.text
    # Others are decided, and a new version tries it again.
    monkeypatch.undo()
    monkeypatch.setattr(guard, "VERSION", "0.1.1")
    give(cluster, CANCEL)
    assert cluster.shown(1) is not JobState.PREPARING


@pytest.mark.parametrize("pools", [STRICT, {}], ids=["strict", "backfill"])
def test_a_job_whose_placement_fails_is_held_and_the_others_go_on(
    pools: dict[str, PoolPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, judge, at in ((scheduler, "place", 1), (profile, "usable", 0)):
        real = getattr(module, judge)
        monkeypatch.setattr(
            module,
            judge,
            lambda *args, real=real, at=at: broken() if args[at].id == 2 else real(*args),
        )
    cluster = Cluster(pools=pools)
    cluster.join("a", "b")
    for _ in range(3):
        cluster.submit(spec())
    held = cluster.job(2).hold
    assert held is not None
    assert held.user == "muster"
    assert held.reason == "its placement failed, a bug of muster: ValueError: planted"
    assert cluster.shown(3) is JobState.PREPARING

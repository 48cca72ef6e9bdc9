"""Inputs that cannot be decided because of a bug: refused, on record, and no crash loop."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName, SessionId
from muster.protocol.link.control_channel import PROTOCOL_MAX, Heartbeat, Hello, NodeObservations
from muster.protocol.states import JobState
from orchestrator.core.engine import guarded_turn as guard
from orchestrator.core.engine import turn
from orchestrator.core.engine.guarded_turn import (
    Turned,
    TurnFailedError,
    guarded_turn,
    guarded_turns,
)
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.plan import PoolPolicy
from orchestrator.core.model.state import State
from orchestrator.core.scheduling import profile, scheduler
from orchestrator.core.scheduling.backfill import schedule
from tests.orchestrator.core.playbook import INVENTORY, STRICT, Cluster, spec


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


def together(cluster: Cluster, *inputs: s.Input) -> list[Turned]:
    turns = guarded_turns(cluster.state, [(it, cluster.now) for it in inputs], cluster.limits)
    for turned in turns:
        cluster.facts += turned.turn.facts
    return turns


def submit(number: int) -> s.SubmitReceived:
    return s.SubmitReceived(a.RequestId(number), spec(), "ada", f"key-{number}", "")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of waiting jobs at each look at the queues."""
    found: list[int] = []

    def counted(state: State, *args: Any, **more: Any) -> Any:
        found.append(sum(map(len, state.queues.values())))
        return schedule(state, *args, **more)

    monkeypatch.setattr(turn, "schedule", counted)
    return found


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


def test_inputs_that_wait_together_share_one_look_at_the_queues(
    cluster: Cluster, looks: list[int]
) -> None:
    jobs = cluster.state.next_job
    turns = together(cluster, *(submit(number) for number in range(50)))
    # Perhaps a second time, because a job started in the first.
    assert looks[0] == 50
    assert len(looks) <= 2
    assert cluster.shown(jobs) is JobState.PREPARING
    assert cluster.shown(jobs + 1) is JobState.QUEUED
    # The answers come first, each after its job.
    assert [len(turned.turn.effects) for turned in turns[:-1]] == [1] * 50
    assert any(isinstance(it, a.Send) for it in turns[-1].turn.effects)
    looks.clear()
    together(cluster, submit(50))
    assert looks == [50]


def test_inputs_without_consequences_for_the_queues_look_at_none(
    cluster: Cluster, looks: list[int]
) -> None:
    session = cluster.node("a").session
    assert session is not None
    together(cluster, *[s.ReportReceived(session, Heartbeat(cluster.mono))] * 2)
    assert looks == []


def test_a_look_that_fails_counts_against_no_input_and_the_next_process_finds_the_one_that_does(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "schedule", broken)
    with pytest.raises(TurnFailedError) as caught:
        together(cluster, submit(1), submit(2))
    assert caught.value.fact is not None
    assert caught.value.fact.origin == "a look at the queues"
    cluster.facts.append(caught.value.fact)
    cluster.state = cluster.replayed()
    with pytest.raises(TurnFailedError) as caught:
        together(cluster, submit(1), submit(2))
    assert caught.value.fact is not None
    assert caught.value.fact.origin.startswith("submit of ada: key-1")


def test_a_node_that_was_removed_and_came_back_before_anybody_looked_is_used() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec())
    cluster.leave("b" if cluster.node("a").holders else "a")
    cluster.beat(600.0)
    cluster.submit(spec(time_limit_s=60.0))
    assert cluster.shown(2) is JobState.QUEUED
    (gone,) = [it.name for it in cluster.state.nodes.values() if it.session is None]
    hello = Hello(
        gone,
        f"id-{gone}",
        f"boot-{gone}",
        "0.1.0",
        NodeObservations(INVENTORY),
        protocol_max=PROTOCOL_MAX,
    )
    remove = s.RemoveReceived(a.RequestId(70), gone, "ana")
    together(cluster, remove, s.HelloReceived(SessionId(99), hello, "127.0.0.1"), submit(3))
    assert cluster.job(2).attempts[-1].tasks[0].node == gone

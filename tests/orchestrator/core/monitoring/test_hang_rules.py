"""A gang that may hang, in the coordinator's core: who is asked, what counts as an answer, what is
done."""

from __future__ import annotations

from math import nextafter
from typing import Any

import pytest

from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link.control_channel import DumpStacks, RankReport, StacksReport
from muster.protocol.observations.hangs import (
    Doing,
    Frame,
    Hang,
    HangKind,
    RankActivity,
    RankStacks,
    Sign,
    StacksView,
    ThreadStack,
)
from muster.protocol.outcome import CauseCode, ExitStatus, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.base import Durability
from orchestrator.core.model.limits import HangLimits
from orchestrator.core.views.display import job_view
from orchestrator.webhooks.payload import message
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

SIGNS = (Sign.LOG, Sign.NETWORK, Sign.CPU)
ALL_REDUCE = Frame("all_reduce", "/venv/site-packages/torch/distributed/distributed_c10d.py", 2800)
STEP = Frame("step", "/w/train.py", 41)
HELD = Frame("augment", "/w/data.py", 17)


def gang(hang: Hang = Hang.NOTIFY, **more: Any) -> Cluster:
    """Two nodes with a rank each."""
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, launcher="processes", nproc_per_node=1, hang=hang, **more))
    cluster.run_gang(1)
    return cluster


def active(rank: int) -> RankActivity:
    return RankActivity(rank, learned=True, still_gap_s=5, idle_gap_s=5, signs=SIGNS)


def idle(rank: int, seconds: float = 20.0, **more: Any) -> RankActivity:
    fields: dict[str, Any] = {"doing": Doing.SLEEPS, "signs": SIGNS, **more}
    return RankActivity(
        rank,
        learned=True,
        still_s=seconds,
        idle_s=seconds,
        still_gap_s=5.0,
        idle_gap_s=5.0,
        **fields,
    )


def says(cluster: Cluster, node: int, rank: RankActivity) -> None:
    cluster.report(
        task(1, 1, node), TaskState.STARTED, prepared=prepared(), running_s=600.0, activity=(rank,)
    )


def stack_dumps(cluster: Cluster, node: int) -> list[DumpStacks]:
    found = cluster.commands(f"n{node}", DumpStacks)
    return [look for look in found if isinstance(look, DumpStacks)]


def answers(cluster: Cluster, node: int, *frames: Frame, rank: RankActivity, **more: Any) -> None:
    """Node `node` answers the last look that it was asked for."""
    look = stack_dumps(cluster, node)[-1]
    stack = RankStacks(node, 100 + node, (ThreadStack("MainThread", frames),))
    fields: dict[str, Any] = {"epoch": look.epoch, "number": look.number, **more}
    session = cluster.node(f"n{node}").session
    assert session is not None
    report = StacksReport(look.task, ranks=(stack,), activity=(rank,), **fields)
    cluster.turn(s.ReportReceived(session, report))


def hang(cluster: Cluster, first: RankActivity, second: RankActivity) -> None:
    """Report both ranks as silent and standing still over two polls."""
    says(cluster, 0, first)
    says(cluster, 1, second)
    since = cluster.mono
    for seconds in (45.0, 6.0):
        cluster.beat(seconds)
        age = cluster.mono - since
        assert stack_dumps(cluster, 0)
        assert stack_dumps(cluster, 1)
        answers(cluster, 0, ALL_REDUCE, STEP, rank=first.later(age))
        answers(cluster, 1, HELD, STEP, rank=second.later(age))


def judged(cluster: Cluster) -> list[hf.HangJudged]:
    return [fact for fact in cluster.facts if isinstance(fact, hf.HangJudged)]


def test_a_gang_that_stands_still_is_looked_at_twice_and_the_odd_rank_named() -> None:
    cluster = gang()
    hang(cluster, idle(0), idle(1))
    (fact,) = judged(cluster)
    assert (fact.verdict.kind, fact.verdict.rank) == (HangKind.HUNG, 1)
    assert fact.verdict.text == "hung: rank 1 at data.py:17"
    assert fact.verdict.node == "n1"
    assert fact.verdict.firm
    assert [len(group.ranks) for group in fact.verdict.groups] == [1, 1]
    assert fact.durability is Durability.SYNC
    assert len(stack_dumps(cluster, 0)) == 2
    # Reported once, however long it goes on, and without consequences.
    cluster.beat(600.0)
    assert len(judged(cluster)) == 1
    assert cluster.job(1).attempts[0].cause is None


def test_webhooks_are_notified_of_it_and_whoever_looks_at_the_job_sees_it() -> None:
    for what in (Hang.NOTIFY, Hang.RESTART):
        cluster = gang(what, notify=("https://hooks.example.com/x",))
        hang(cluster, idle(0), idle(1))
        made = [fact.event for fact in cluster.facts if isinstance(fact, nf.WebhookQueued)]
        assert made == [nf.WebhookEvent.STARTED, nf.WebhookEvent.HUNG]
        job = cluster.job(1)
        webhook = job.queued_webhooks[2, 0]
        said = message(cluster.state, job, 2, webhook, cluster.now)
        assert (said.event, said.attempt, said.cause) == ("hung", 1, None)
        assert said.text == "hung: rank 1 at data.py:17"
        if what is Hang.NOTIFY:
            assert "; hung: rank 1 at data.py:17; no progress for" in said.job.reason.text
            says(cluster, 1, active(1))
            # The hang is over before the webhook is sent: its text is still the finding.
            assert (
                "hung" not in message(cluster.state, job, 2, webhook, cluster.now).job.reason.text
            )
            assert message(cluster.state, job, 2, webhook, cluster.now).text == said.text


@pytest.mark.parametrize(
    ("gap_s", "limit_s"), [(0.0, 60.0), (30.0, 150.0), (180.0, 540.0), (1000.0, 1060.0)]
)
def test_a_long_pause_does_not_delay_suspicion_for_ever(gap_s: float, limit_s: float) -> None:
    assert HangLimits().of_gap(gap_s) == limit_s


def test_it_is_over_when_it_moves() -> None:
    cluster = gang()
    hang(cluster, idle(0), idle(1))
    says(cluster, 1, active(1))
    assert cluster.job(1).attempts[0].hang is None
    assert any(isinstance(fact, hf.HangCleared) for fact in cluster.facts)


def test_a_sample_due_in_a_moment_is_not_taken_early() -> None:
    """A timer that is due at once would be set again and again, as long as no time passes."""
    cluster = gang()
    for rank in (0, 1):
        says(cluster, rank, idle(rank, nextafter(60.0, 0.0)))
    assert not stack_dumps(cluster, 0)
    timer = a.Timer(a.TimerKind.HANG, job=JobId(1), attempt=1)
    assert cluster.timers[timer] > cluster.mono
    cluster.pass_time(0.1)
    assert stack_dumps(cluster, 0)


def test_restart_ends_the_attempt_on_the_infra_budget() -> None:
    cluster = gang(Hang.RESTART)
    hang(cluster, idle(0), idle(1))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.outcome) == (CauseCode.HUNG, Outcome.INFRA)
    assert (cause.text, cause.rank, cause.node_fault) == ("hung: rank 1 at data.py:17", 1, False)
    assert all(look.threads for look in stack_dumps(cluster, 0))
    # A rank that is asked for its recorder moves: only the look that decides may ask.
    assert [look.recorder for look in stack_dumps(cluster, 0)] == [False, True]
    for node in (0, 1):
        cluster.clean(task(1, 1, node))
    assert cluster.job(1).infra_used == 1


def watched(cluster: Cluster, second: RankActivity, seconds: float, *, held: bool = True) -> None:
    """Time passes over a gang that does nothing; whenever it is looked at, its nodes answer. Of
    node 1 without `held` that it could not look."""
    since, first = cluster.mono, idle(0)
    while cluster.mono < since + seconds:
        cluster.beat(1.0)
        look = cluster.state.stack_dumps.get((JobId(1), 1))
        if look is None:
            continue
        age = cluster.mono - since
        answers(cluster, 0, ALL_REDUCE, STEP, rank=first.later(age))
        stack = (HELD, STEP) if held else ()
        answers(cluster, 1, *stack, rank=second.later(age))


def test_a_job_to_restart_is_sampled_until_the_hang_is_certain() -> None:
    cluster = gang(Hang.RESTART)
    for node in (0, 1):
        says(cluster, node, idle(node))
    watched(cluster, idle(1), 240.0, held=False)
    (fact,) = judged(cluster)
    assert (fact.verdict.kind, fact.verdict.firm) == (HangKind.HUNG, False)
    assert cluster.job(1).attempts[0].cause is None
    assert len(stack_dumps(cluster, 1)) > 4
    watched(cluster, idle(1, 260.0), 130.0)
    assert [fact.verdict.firm for fact in judged(cluster)] == [False, True]
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.HUNG


def test_a_slow_job_may_hang_later() -> None:
    cluster = gang()
    says(cluster, 0, idle(0))
    says(cluster, 1, idle(1, doing=Doing.DISK))
    watched(cluster, idle(1, doing=Doing.DISK), 900.0)
    assert [fact.verdict.kind for fact in judged(cluster)] == [HangKind.SLOW]
    says(cluster, 1, idle(1, 920.0))
    watched(cluster, idle(1, 920.0), 130.0)
    assert [fact.verdict.kind for fact in judged(cluster)] == [HangKind.SLOW, HangKind.HUNG]
    asked = len(stack_dumps(cluster, 0))
    watched(cluster, idle(1, 1050.0), 600.0)
    assert len(stack_dumps(cluster, 0)) == asked


def test_others_that_hang_when_a_rank_has_ended_are_found() -> None:
    cluster = gang()
    hang(cluster, RankActivity(0, doing=Doing.GONE), idle(1))
    (fact,) = judged(cluster)
    assert fact.verdict.text == "hung: rank 1 at data.py:17; rank 0 has ended"
    cluster.beat(60.0)
    assert cluster.job(1).attempts[0].hang is not None


def test_a_job_that_waits_for_a_disk_is_slow_after_ten_minutes_and_never_restarted() -> None:
    cluster = gang(Hang.RESTART, notify=("https://hooks.example.com/x",))
    first, second = idle(0, doing=Doing.DISK), idle(1)
    says(cluster, 0, first)
    says(cluster, 1, second)
    fields: list[float] = []
    for minute in range(14):
        for _ in range(12):
            cluster.beat(5.0)
            for node, rank in ((0, first), (1, second)):
                asked = stack_dumps(cluster, node)
                if asked and (1, 1) in cluster.state.stack_dumps:
                    age = cluster.mono - 100.0
                    answers(cluster, node, ALL_REDUCE, STEP, rank=rank.later(age))
        if judged(cluster) and not fields:
            fields.append(minute)
    (fact,) = judged(cluster)
    assert fact.verdict.kind is HangKind.SLOW
    assert fields[0] >= 9
    assert [webhook.event for webhook in cluster.job(1).queued_webhooks.values()] == [
        "started",
        "slow",
    ]
    assert cluster.job(1).attempts[0].cause is None


def test_nothing_is_judged_while_a_rank_is_unseen() -> None:
    cluster = gang(Hang.RESTART)
    says(cluster, 0, idle(0))
    says(cluster, 1, idle(1))
    cluster.leave("n1")
    cluster.beat(120.0)
    assert stack_dumps(cluster, 0) == []
    assert judged(cluster) == []


def test_nothing_is_judged_before_there_is_a_cadence_or_by_one_sign_alone() -> None:
    for more in ({"learned": False}, {"signs": (Sign.CPU,)}):
        cluster = gang()
        quiet = {"rank": 0, "still_s": 20.0, "idle_s": 20.0, "learned": True, "signs": SIGNS}
        for node in (0, 1):
            says(cluster, node, RankActivity(**{**quiet, **more, "rank": node}))  # type: ignore[arg-type]
        cluster.beat(600.0)
        assert stack_dumps(cluster, 0) == []


def test_an_answer_to_an_earlier_life_of_the_coordinator_is_none() -> None:
    cluster = gang(Hang.RESTART)
    says(cluster, 0, idle(0))
    says(cluster, 1, idle(1))
    cluster.beat(45.0)
    look = stack_dumps(cluster, 0)[-1]
    for more in ({"epoch": look.epoch - 1}, {"number": look.number + 1}):
        answers(cluster, 0, HELD, rank=active(0), **more)
        assert len(cluster.state.stack_dumps[JobId(1), 1].awaited) == 2
    # After a restart there are no stack dumps, and no rank is known until its node has reported.
    cluster.turn(s.CoordinatorStarted(cluster.state.epoch + 1))
    assert cluster.state.stack_dumps == {}
    assert cluster.state.watches == {}


def test_a_gang_that_moves_at_the_second_sample_is_not_hung() -> None:
    cluster = gang()
    says(cluster, 0, idle(0))
    says(cluster, 1, idle(1))
    cluster.beat(45.0)
    for node in (0, 1):
        answers(cluster, node, HELD, rank=idle(node, 65.0))
    cluster.beat(6.0)
    answers(cluster, 0, HELD, rank=idle(0, 71.0))
    answers(cluster, 1, STEP, rank=active(1))
    cluster.beat(5.0)
    assert judged(cluster) == []


def test_stacks_are_had_on_demand_and_two_who_ask_share_a_look() -> None:
    cluster = gang()
    for request in (70, 71):
        cluster.turn(s.StacksReceived(a.RequestId(request), JobId(1)))
    assert len(stack_dumps(cluster, 0)) == 1
    answers(cluster, 0, ALL_REDUCE, STEP, rank=active(0))
    assert 70 not in cluster.answers
    answers(cluster, 1, ALL_REDUCE, STEP, rank=active(1))
    for request in (70, 71):
        found = cluster.answers[request]
        assert isinstance(found, a.Stacks)
        assert isinstance(found.view, StacksView)
        (group,) = found.view.groups
        assert (group.ranks, group.place, group.waits) == ((0, 1), "train.py:41", True)
    assert judged(cluster) == []


@pytest.mark.parametrize("answered", [True, False], ids=("answered", "not answered"))
@pytest.mark.parametrize("after_s", [38.0, 44.0], ids=("before the first", "before the second"))
def test_a_look_that_a_user_asked_for_does_not_put_off_for_ever_what_was_due(
    answered: bool, after_s: float
) -> None:
    """The gang is suspected at 60 s of silence, 40 s from now, and looked at again 5 s later."""
    cluster = gang(Hang.RESTART)
    ranks = idle(0), idle(1)
    for node in (0, 1):
        says(cluster, node, ranks[node])
    since, until = cluster.mono, cluster.mono + after_s

    def answer(up_to: float) -> None:
        while cluster.mono < up_to:
            cluster.beat(1.0)
            look = cluster.state.stack_dumps.get((JobId(1), 1))
            if look is None or not (look.judges or answered):
                continue
            for node in (0, 1):
                if stack_dumps(cluster, node)[-1].task in look.awaited:
                    now = ranks[node].later(cluster.mono - since)
                    answers(cluster, node, *((ALL_REDUCE, STEP), (HELD, STEP))[node], rank=now)

    answer(until)
    cluster.turn(s.StacksReceived(a.RequestId(70), JobId(1)))
    cluster.beat(8.0)
    assert (JobId(1), 1) in cluster.state.stack_dumps
    answer(until + 45.0)
    assert 70 in cluster.answers
    (fact,) = judged(cluster)
    assert fact.verdict.kind is HangKind.HUNG


def test_a_node_that_cannot_answer_is_named_and_not_awaited_for_ever() -> None:
    cluster = gang()
    cluster.leave("n1")
    cluster.turn(s.StacksReceived(a.RequestId(70), JobId(1)))
    cluster.beat(25.0)
    found = cluster.answers[70]
    assert isinstance(found, a.Stacks)
    assert found.view.notes == ("n1 cannot be reached now", "n0 has not answered in time")
    assert cluster.state.stack_dumps == {}


def test_a_problem_common_to_all_nodes_is_reported_once() -> None:
    cluster = gang()
    cluster.turn(s.StacksReceived(a.RequestId(70), JobId(1)))
    for node in (0, 1):
        answers(cluster, node, rank=active(node), problem="py-spy is not installed")
    found = cluster.answers[70]
    assert isinstance(found, a.Stacks)
    assert found.view.notes == ("n0, n1: py-spy is not installed",)


def test_a_job_that_does_not_run_has_no_stacks() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    for request, job in ((70, 1), (71, 9)):
        cluster.turn(s.StacksReceived(a.RequestId(request), JobId(job)))
        found = cluster.answers[request]
        assert isinstance(found, a.Declined)
        assert found.code == ("not_running" if job == 1 else a.UNKNOWN_JOB)


def test_a_verdict_is_there_after_a_restart() -> None:
    cluster = gang()
    hang(cluster, idle(0), idle(1))
    attempt = cluster.replayed().jobs[JobId(1)].attempts[0]
    assert attempt.hang == judged(cluster)[0].verdict
    assert [verdict for _, verdict in attempt.hangs] == [attempt.hang]


def test_looks_change_nothing_of_the_job() -> None:
    cluster = gang()
    before = cluster.job(1).revision
    cluster.turn(s.StacksReceived(a.RequestId(70), JobId(1)))
    for node in (0, 1):
        answers(cluster, node, STEP, rank=active(node))
    assert cluster.job(1).revision == before
    assert cluster.node("n0").name == NodeName("n0")
    assert stack_dumps(cluster, 0)[0].task == TaskId("1.1.0")


def fresh(rank: int, seconds: float) -> RankActivity:
    """Describe a program that ran for a few seconds, too short for any sign to be seen."""
    return RankActivity(rank, still_s=seconds, idle_s=seconds, doing=Doing.SLEEPS)


def gone(rank: int, seconds: float) -> RankActivity:
    return RankActivity(rank, still_s=seconds, idle_s=seconds, doing=Doing.GONE)


def reason(cluster: Cluster) -> str:
    return job_view(cluster.state, cluster.job(1), cluster.now).reason.text


@pytest.mark.parametrize("task_ended", [True, False], ids=("task ended", "launcher waits"))
def test_a_rank_that_stays_silent_after_the_others_have_ended_is_judged_without_a_cadence(
    task_ended: bool,
) -> None:
    cluster = gang()
    says(cluster, 0, fresh(0, 15.0))
    assert "ended" not in reason(cluster)
    if task_ended:
        ranks = (RankReport(1, exit=ExitStatus(0), at_s=0.0),)
        cluster.report(
            task(1, 1, 1), TaskState.EXITED, prepared=prepared(), exit=ExitStatus(0), ranks=ranks
        )
    else:
        says(cluster, 1, gone(1, 0.0))
    since = cluster.mono
    assert "; rank 1 has ended" in reason(cluster)
    cluster.beat(280.0)
    assert stack_dumps(cluster, 0) == []
    for seconds in (25.0, 6.0):
        cluster.beat(seconds)
        answers(cluster, 0, STEP, rank=fresh(0, 15.0 + cluster.mono - since))
        if not task_ended:
            look = stack_dumps(cluster, 1)[-1]
            session = cluster.node("n1").session
            assert session is not None
            report = StacksReport(look.task, look.epoch, look.number)
            cluster.turn(s.ReportReceived(session, report))
    (fact,) = judged(cluster)
    assert fact.verdict.text == "hung: rank 0 at train.py:41; rank 1 has ended"
    assert fact.verdict.quiet_s < 400
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    hinted = ["time.sleep(0.02)" in str(one.warnings) for one in view.attempts[0].tasks]
    assert hinted == [True, False]
    assert "time.sleep" not in view.reason.text


def test_a_rank_that_waited_for_the_end_of_the_others_is_silent_from_there_only() -> None:
    cluster = gang()
    says(cluster, 0, fresh(0, 900.0))
    says(cluster, 1, gone(1, 0.0))
    cluster.beat(280.0)
    assert stack_dumps(cluster, 0) == []


@pytest.mark.parametrize(
    ("alive", "other"),
    [
        (RankActivity(0, still_s=900.0, signs=(Sign.CPU,)), gone(1, 900.0)),  # it computes
        (fresh(0, 900.0), fresh(1, 900.0)),  # none has ended
        (fresh(0, 900.0), RankActivity(1, doing=Doing.GONE)),  # nobody knows since when
    ],
)
def test_no_gang_without_a_cadence_is_judged_by_less(
    alive: RankActivity, other: RankActivity
) -> None:
    cluster = gang()
    says(cluster, 0, alive)
    says(cluster, 1, other)
    cluster.beat(900.0)
    assert stack_dumps(cluster, 0) == []


def test_scripts_of_a_gang_end_when_they_like() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, launcher="none"))
    cluster.run_gang(1)
    says(cluster, 0, fresh(0, 15.0))
    cluster.end(task(1, 1, 1), ExitStatus(0))
    cluster.beat(900.0)
    assert stack_dumps(cluster, 0) == []
    assert "ended" not in reason(cluster)

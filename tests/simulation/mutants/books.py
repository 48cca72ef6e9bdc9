"""Planted bugs of what the coordinator records and when, and of what it hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import ArrangeTask, TaskReport
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec
from orchestrator.core.engine import apply_jobs, react
from orchestrator.core.engine import turn as turns
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.turn import Turn, turn
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.base import Durability
from orchestrator.core.failures import stops
from orchestrator.core.gangs import commands, transitions
from orchestrator.core.gangs.retry_policy import after_attempt
from orchestrator.core.model.attempt import ATTEMPT_TRANSITIONS, AttemptPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.model.task import OVER
from orchestrator.core.scheduling import placement, rendezvous
from orchestrator.core.scheduling.placement import Waiting, busy, place
from orchestrator.core.scheduling.reasons import Rejection
from tests.simulation import checkers
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.mutants.planting import COORDINATOR, everywhere


def _durable(kind: type[f.Fact], durability: Durability) -> Patch:
    return _put(kind, "durability", durability)


def _put(module: Any, name: str, value: Any) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, value)

    return patch


def _wrap(module: Any, name: str, wrapper: Callable[[Any], Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, wrapper(getattr(module, name)))

    return patch


def _both(*patches: Patch) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(monkeypatch)

    return patch


def _unseen(planted: Patch) -> Patch:
    """Plant the bug without the checks of the journal: its consequences must show on the nodes."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        planted(monkeypatch)
        monkeypatch.setattr(checkers, "check", lambda _: [])

    return patch


def _cause_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = AttemptPhase.STOPPING
    again = frozenset({stopping, AttemptPhase.CLOSED})
    monkeypatch.setitem(ATTEMPT_TRANSITIONS, stopping, again)
    everywhere(turn, _stops_again)(monkeypatch)


def _stops_again(real: Any) -> Any:
    """A rank that ends gives the attempt another cause."""

    def turn(state: State, received: s.Input, now: Instant, limits: Limits) -> Turn:
        done: Turn = real(state, received, now, limits)
        for fact in [one for one in done.facts if isinstance(one, f.TaskExited)]:
            attempt = state.jobs[fact.job].attempt(fact.attempt)
            if attempt.phase is AttemptPhase.STOPPING and attempt.cause is not None:
                cause = msgspec.structs.replace(attempt.cause, text=f"rank {fact.rank} ended")
                done.facts.append(f.StopRequested(fact.job, fact.attempt, cause))
                apply(state, done.facts[-1], now.wall)
        return done

    return turn


def _cancel_forgotten(job: Job, attempt: Attempt, *, spare: bool) -> f.JobEnded | f.RetryScheduled:
    return after_attempt(replace(job, cancel=None), attempt, spare=spare)


def _freed_early(state: State, fact: f.Fact) -> None:
    if isinstance(fact, f.StopRequested):
        for task in state.jobs[fact.job].attempt(fact.attempt).tasks:
            state.nodes[task.node].holders.clear()


def _skips_the_head(state: State) -> f.AttemptPlaced | None:
    for queue in state.queues.values():
        for _, name in reversed(queue):
            job = state.jobs[name]
            nodes = place(state, job)
            if not isinstance(nodes, Waiting):
                return f.AttemptPlaced(job.id, len(job.attempts) + 1, nodes)
    return None


def _blind_to_returns(real: Any) -> Any:
    return lambda state, fact: not isinstance(fact, lf.NodeConnected) and real(state, fact)


def _blind_to_ends(real: Any) -> Any:
    return lambda state, fact: (
        not isinstance(fact, f.TaskLeft | f.TaskCleaned | f.TaskLost) and real(state, fact)
    )


def _ignores_the_retried(real: Any) -> Any:
    def next_placement(state: State) -> f.AttemptPlaced | None:
        placed: f.AttemptPlaced | None = real(state)
        return None if placed is not None and placed.attempt > 1 else placed

    return next_placement


def _appends(state: State, job: Job) -> None:
    state.queues.setdefault(job.spec.pool, []).append((-job.spec.priority, job.id))
    state.waiting.add(job.spec, job.id)


def _changes_in_memory(real: Any) -> Any:
    def after(job: Job, attempt: Attempt, *, spare: bool) -> f.JobEnded | f.RetryScheduled:
        decided: f.JobEnded | f.RetryScheduled = real(job, attempt, spare=spare)
        job.avoid |= {attempt.tasks[0].node}
        return decided

    return after


def _not_busy(state: State, spec: JobSpec, node: Node) -> Rejection | None:
    return busy(state, spec, replace(node, holders={}))


def _first_port(state: State, attempt: Attempt) -> f.AttemptArranged | Cause:
    return rendezvous.choose_rendezvous(replace(state, ports={}), attempt)


def _any_arranged(_: State, fact: f.Fact) -> list[f.Fact]:
    if isinstance(fact, f.TaskArranged):
        return [fact, f.AttemptStarted(fact.job, fact.attempt)]
    return [fact]


def _closes_early(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.STOPPING:
        return []
    if not any(task.state in OVER for task in attempt.tasks):
        return []
    return [f.AttemptClosed(attempt.job, attempt.number)]


def _completes_early(state: State, fact: f.Fact) -> list[f.Fact]:
    if isinstance(fact, f.TaskExited) and fact.exit.ok:
        attempt = state.jobs[fact.job].attempt(fact.attempt)
        if attempt.phase is AttemptPhase.RUNNING:
            cause = Cause(CauseCode.COMPLETED, Outcome.SUCCESS, "the first node is done")
            return [fact, f.StopRequested(fact.job, fact.attempt, cause)]
    return [fact]


def _keyless(_: State, received: s.Input) -> s.Input:
    return (
        msgspec.structs.replace(received, key="")
        if isinstance(received, s.SubmitReceived)
        else received
    )


def _blames_the_stopped(_: State, received: Any) -> Any:
    if isinstance(received, s.ReportReceived) and isinstance(received.report, TaskReport):
        report = msgspec.structs.replace(received.report, stopped_by="")
        return msgspec.structs.replace(received, report=report)
    return received


def _endless_budget(job: Job, attempt: Attempt, *, spare: bool) -> f.JobEnded | f.RetryScheduled:
    return after_attempt(replace(job, infra_used=0, user_used=0), attempt, spare=spare)


LAZY, EPHEMERAL = Durability.LAZY, Durability.EPHEMERAL


def _counts_alike(_: State, effect: a.Effect) -> list[a.Effect]:
    if isinstance(effect, a.Send) and isinstance(effect.command, ArrangeTask):
        plan = effect.command
        rank, own = int(plan.task.rpartition(".")[2]), len(plan.ranks)
        ranks = tuple({**r, "RANK": str(rank * own + i)} for i, r in enumerate(plan.ranks))
        return [msgspec.structs.replace(effect, command=msgspec.structs.replace(plan, ranks=ranks))]
    return [effect]


def _goes_on_always(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(job: Job, attempt: Attempt, *_: Any, **__: Any) -> bool:
        running = attempt.phase is AttemptPhase.RUNNING and attempt.started_at is not None
        return job.spec.elastic and running

    monkeypatch.setattr(stops, "survives_without", always)


def _freed_on_leaving(state: State, fact: f.Fact) -> None:
    if isinstance(fact, f.TaskLeft):
        task = state.jobs[fact.job].attempt(fact.attempt).tasks[fact.rank]
        state.nodes[task.node].holders.clear()


MUTANTS = (
    Mutant(
        "a submit is acknowledged before it is on disk", _durable(f.JobSubmitted, LAZY), ("I1",)
    ),
    Mutant("a cancel is, too", _durable(f.CancelRequested, LAZY), ("I1",), seed=25),
    Mutant(
        "commands are sent for a placement that is not on disk",
        _durable(f.AttemptPlaced, LAZY),
        ("I1",),
        seed=3,
    ),
    Mutant(
        "gates open before that is on disk", _durable(f.AttemptStarted, LAZY), ("gang",), seed=1
    ),
    Mutant(
        "an exit is forgotten on the node before it is on disk",
        _durable(f.TaskCleaned, LAZY),
        ("I1",),
        seed=1,
    ),
    Mutant(
        "an epoch is sent before it is on disk", _durable(cf.EpochStarted, LAZY), ("epoch",), seed=6
    ),
    Mutant("exits never reach the disk", _durable(f.TaskExited, EPHEMERAL), ("replay",)),
    Mutant(
        "something is changed without a fact",
        _wrap(react, "after_attempt", _changes_in_memory),
        ("replay",),
    ),
    Mutant("idempotency keys are ignored", COORDINATOR.inputs(_keyless), ("I1",), seed=6),
    Mutant(
        "a later cause takes the place of the first",
        _cause_overwritten,
        ("I2",),
        seed=3,
    ),
    Mutant(
        "a cancelled job is tried again",
        _put(react, "after_attempt", _cancel_forgotten),
        ("I1",),
        seed=25,
    ),
    Mutant(
        "nodes are free when the stop is requested",
        COORDINATOR.state(_freed_early),
        ("books",),
    ),
    Mutant(
        "a gang is closed when its first task is clean",
        _both(_put(react, "closed", _closes_early), _put(transitions, "closed", _closes_early)),
        ("books",),
        seed=1,
    ),
    Mutant(
        "a node that is held counts as free", _put(placement, "busy", _not_busy), ("books",), seed=5
    ),
    Mutant(
        "a port that is leased is given again",
        _put(transitions, "choose_rendezvous", _first_port),
        ("books",),
        seed=26,
    ),
    Mutant(
        "the gates open when the first has its plan",
        COORDINATOR.facts(_any_arranged),
        ("books", "gang"),
        seed=1,
    ),
    Mutant(
        "workers start with the launcher",
        _put(commands, "may_start", lambda *_: True),
        ("order",),
        seed=1,
    ),
    Mutant(
        "ranks are counted as if every node had the same number",
        COORDINATOR.effects(_counts_alike),
        ("ranks",),
        seed=108,
    ),
    Mutant(
        "an elastic gang goes on without anybody",
        _goes_on_always,
        ("books", "raised", "I10", "truth"),
        seed=102,
    ),
    Mutant(
        "a node is free when it leaves its gang, whatever still runs there",
        COORDINATOR.state(_freed_on_leaving),
        ("books", "I5", "I4"),
        seed=140,
    ),
    Mutant(
        "the last of the queue comes first",
        _put(turns, "next_placement", _skips_the_head),
        ("queue",),
        seed=1,
    ),
    Mutant(
        "nobody looks who waits when a node is back",
        _wrap(turns, "frees_capacity", _blind_to_returns),
        ("queue",),
        seed=6,
    ),
    Mutant(
        "nobody looks who may join when a node has left",
        _wrap(turns, "may_join", _blind_to_ends),
        ("queue",),
        seed=148,
    ),
    Mutant("priorities are ignored", _put(apply_jobs, "enqueue", _appends), ("books",), seed=1),
    Mutant(
        "a job's second attempt is never placed",
        _wrap(turns, "next_placement", _ignores_the_retried),
        ("queue",),
        seed=1,
    ),
    Mutant(
        "success is declared when the first node is done",
        COORDINATOR.facts(_completes_early),
        ("truth",),
        seed=1,
    ),
    Mutant(
        "ranks that we stopped are blamed",
        COORDINATOR.inputs(_blames_the_stopped),
        ("truth",),
        seed=4,
    ),
    Mutant(
        "budgets of retries have no end",
        _put(react, "after_attempt", _endless_budget),
        ("books",),
        seed=3,
    ),
    Mutant(
        "nodes are free when the stop is requested, and the books are not read",
        _unseen(COORDINATOR.state(_freed_early)),
        ("I5", "queue"),
        seed=18,
    ),
    Mutant(
        "a gang is closed when its first task is clean, and the books are not read",
        _unseen(
            _both(_put(react, "closed", _closes_early), _put(transitions, "closed", _closes_early))
        ),
        ("I3", "I4", "I5"),
        seed=1,
    ),
    Mutant(
        "a node that is held counts as free, and the books are not read",
        _unseen(_put(placement, "busy", _not_busy)),
        ("I5",),
        seed=5,
    ),
    Mutant(
        "a port that is leased is given again, and the books are not read",
        _unseen(_put(transitions, "choose_rendezvous", _first_port)),
        ("ports",),
        seed=161,
    ),
    Mutant(
        "the gates open when the first has its plan, and the books are not read",
        _unseen(COORDINATOR.facts(_any_arranged)),
        ("gang", "hosts"),
        seed=1,
    ),
)

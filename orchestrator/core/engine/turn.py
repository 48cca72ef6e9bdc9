"""A turn of the coordinator: an input, all its consequences, and the next placements."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from muster.protocol.instant import Instant
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.decide import decide
from orchestrator.core.engine.queue_events import queue_events
from orchestrator.core.engine.react import react
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.effects import Effect, SetTimer, Timer, TimerKind
from orchestrator.core.facts.inputs import Input
from orchestrator.core.facts.jobs import (
    AttemptArranged,
    AttemptPlaced,
    AttemptStarted,
    Fact,
    JobSubmitted,
    StopRequested,
    TaskExited,
)
from orchestrator.core.facts.queue import StartMoved
from orchestrator.core.facts.service import HardwareReported, NodeDrained
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import lease_of, margin_s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.plan import QueueEvent
from orchestrator.core.model.state import State
from orchestrator.core.scheduling.backfill import schedule
from orchestrator.core.scheduling.elastic import may_join, next_join
from orchestrator.core.scheduling.scheduler import frees_capacity, next_placement


@dataclass(slots=True)
class Turn:
    """`facts` have been applied. The shell carries out `effects` once the facts are on disk."""

    facts: list[Fact] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


_AT_ONCE: Final = frozenset({NodeDrained, HardwareReported, TaskExited})


@dataclass(slots=True)
class Due:
    """Reasons to look at the queues, from the facts of one or more turns.

    `events` may move promised starts. `frees`: a gang may have room in a pool without backfill.
    `plans`: the plan of a pool with backfill may change; `freed`: its capacity may have grown.
    `joins`: a node may join an elastic gang.
    """

    events: list[QueueEvent] = field(default_factory=list)
    frees: bool = False
    plans: bool = False
    freed: bool = False
    joins: bool = False

    def note(self, state: State, facts: Sequence[Fact]) -> None:
        """Add the reasons in the facts of a turn, which have just been applied.

        Facts that cannot free capacity, such as heartbeats and progress reports, are no reason.
        """
        events = queue_events(state, facts)
        frees = any(frees_capacity(state, it) for it in facts)
        self.events += events
        self.frees |= frees
        # The planned end of an attempt that stops is counted from now.
        if events or frees or any(isinstance(it, StopRequested) for it in facts):
            self.plans = True
            self.freed |= any(not isinstance(it, JobSubmitted) for it in facts)
        if state.elastic:
            self.joins |= any(may_join(state, it) for it in facts)


def turn(state: State, received: Input, now: Instant, limits: Limits) -> Turn:
    """Advance `state` by one input. A running coordinator changes the state in no other way."""
    return advance(state, decide(state, received, now, limits), now, limits)


def advance(
    state: State, decision: Decision, now: Instant, limits: Limits, due: Due | None = None
) -> Turn:
    """Apply a decision and all its consequences.

    With `due`, notes there why the queues have to be looked at; `look_at_queues` does it then.
    """
    done = Turn()
    _apply_with_reactions(state, decision.facts, now, limits, done)
    done.effects[:0] = decision.effects
    noted = Due() if due is None else due
    noted.note(state, done.facts)
    if due is None:
        _look_at_queues(state, noted, now, limits, done)
    return done


def look_at_queues(state: State, due: Due, now: Instant, limits: Limits) -> Turn:
    """Start the gangs that fit now, and plan the starts of others, after one or more turns."""
    done = Turn()
    _look_at_queues(state, due, now, limits, done)
    return done


def _look_at_queues(state: State, due: Due, now: Instant, limits: Limits, done: Turn) -> None:
    known = len(done.facts)
    if due.frees:
        while (placed := next_placement(state)) is not None:
            leased = _with_lease(state, placed, limits)
            _apply_with_reactions(state, [leased], now, limits, done)
    due.note(state, done.facts[known:])
    known = len(done.facts)
    if due.plans:
        _backfill(state, due, now, limits, done)
    joins = due.joins or any(may_join(state, fact) for fact in done.facts[known:])
    if state.elastic and joins:
        while (joined := next_join(state, now)) is not None:
            _apply_with_reactions(state, [joined], now, limits, done)


def _backfill(state: State, due: Due, now: Instant, limits: Limits, done: Turn) -> None:
    """Look at the queues of pools with backfill."""
    lease_s = limits.lease_s + margin_s(limits.lease_s)
    found = schedule(state, due.events, now, lease_s, freed=due.freed)
    again = found
    # A promise that moved later no longer keeps its nodes from the jobs before it.
    moved = any(isinstance(fact, StartMoved) for fact in found)
    while again:
        leased = [_with_lease(state, fact, limits) for fact in again]
        _apply_with_reactions(state, leased, now, limits, done)
        # A gang that started elsewhere than planned may have left room for others.
        placed = any(isinstance(fact, AttemptPlaced) for fact in again)
        goes_on = state.plan.wakes_at == now.mono  # by the timer below
        again = schedule(state, [], now, lease_s) if (placed or moved) and not goes_on else []
        moved = False
    if (at := state.plan.wakes_at) is not None and found:
        done.effects.append(SetTimer(Timer(TimerKind.QUEUE), at))


def _with_lease(state: State, fact: Fact, limits: Limits) -> Fact:
    """Set the lease of a new attempt; other facts stay as they are."""
    if not isinstance(fact, AttemptPlaced):
        return fact
    return replace(fact, lease_s=lease_of(state.jobs[fact.job].spec, limits))


def _apply_with_reactions(
    state: State, facts: list[Fact], now: Instant, limits: Limits, done: Turn
) -> None:
    pending = deque(facts)
    while pending:
        fact = pending.popleft()
        if isinstance(fact, AttemptStarted | StopRequested) and _is_void(state, fact):
            continue
        if isinstance(fact, NodeDrained) and _is_drained(state, fact):
            continue
        apply(state, fact, now.wall)
        done.facts.append(fact)
        followed = react(state, fact, now, limits)
        leased = any(type(one) is AttemptArranged for one in followed.facts)
        if leased or type(fact) in _AT_ONCE:
            # Apply these consequences first. A port must be leased before another gang of the same
            # report chooses one. A task that ended well must have ended before its GPU is reported
            # as failed. A gang must leave only once, even if two of its nodes are drained or two of
            # its GPUs fail at once.
            pending.extendleft(reversed(followed.facts))
        else:
            pending.extend(followed.facts)
        done.effects += followed.effects


def _is_drained(state: State, fact: NodeDrained) -> bool:
    """True if the coordinator would drain a node again, for the second of two reasons in a turn."""
    return fact.user == ITSELF and not state.nodes[fact.node].in_service


def _is_void(state: State, fact: AttemptStarted | StopRequested) -> bool:
    """True if the attempt is past the fact already: started twice, stopping, or closed.

    A gang that becomes ready and loses its node in the same turn does not start. If an attempt gets
    two causes in one turn, the first one counts. A node of a gang of one may report a start
    together with being ready, and both start the attempt.
    """
    phase = state.jobs[fact.job].attempt(fact.attempt).phase
    if phase is AttemptPhase.RUNNING and isinstance(fact, AttemptStarted):
        return True
    return phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED)

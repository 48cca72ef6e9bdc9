"""A turn that outlives an exception: an input that cannot be decided is refused, and on record.

`decide` changes nothing, so an input for which it fails is refused at once. If the consequences
fail, part of them is in the state and none is in the journal, so the process must end. The next
process starts from the journal; once an input of one origin has ended two processes, it is refused.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Refused
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.decide import VERSION, decide
from orchestrator.core.engine.turn import Due, Turn, advance, look_at_queues
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State

ENDED_MAX: Final = 2
ORIGINS_MAX: Final = 256
_QUEUES: Final = "a look at the queues"
_TEXT_MAX: Final = 300
_AGAIN_S: Final = 60.0
_HINT: Final = "this is a bug of muster: the coordinator's log has the traceback; please report it"


class TurnFailedError(Exception):
    """The consequences of an input cannot be computed. The state is not to be used any more."""

    def __init__(self, fact: cf.InputFailed | None) -> None:
        super().__init__("the consequences of an input cannot be computed")
        self.fact = fact


def guarded_turn(
    state: State, received: s.Input, now: Instant, limits: Limits, due: Due | None = None
) -> tuple[Turn, Exception | None]:
    """The same as `turn`. Returns the exception, too, if the input was refused because of it.

    With `due`, looks at no queue, as `advance`. Raises TurnFailedError if the process must end.
    """
    origin = origin_of(state, received)
    if origin and state.failed_inputs.get((VERSION, origin), 0) >= ENDED_MAX:
        return Turn([], _refusal(received, now, f"{origin} has ended the coordinator twice")), None
    try:
        decision = decide(state, received, now, limits)
    except Exception as error:
        if not origin:
            raise
        return _refused(state, received, origin, error, now), error
    try:
        return advance(state, decision, now, limits, due), None
    except Exception as error:
        fact = cf.InputFailed(VERSION, origin, _text(error), ended=True) if origin else None
        raise TurnFailedError(fact) from error


class Turned(NamedTuple):
    """A turn, the time of its input, and the exception for which the input was refused."""

    turn: Turn
    at: Instant
    given: s.Input | None = None
    error: Exception | None = None


def guarded_turns(
    state: State, inputs: Sequence[tuple[s.Input, Instant]], limits: Limits
) -> list[Turned]:
    """Return the turns of inputs that wait together. The last one looks at the queues, for all.

    Raises TurnFailedError if the process must end. Then none of these turns counts.
    """
    # After a failed turn, each input runs its own scheduling pass, to find the one that fails.
    failed = any(ended and it == VERSION for (it, _), ended in state.failed_inputs.items())
    due = None if failed or len(inputs) < 2 else Due()
    turns = []
    for given, at in inputs:
        done, error = guarded_turn(state, given, at, limits, due)
        turns.append(Turned(done, at, given, error))
    if due is None:
        return turns
    _, last = inputs[-1]
    try:
        turns.append(Turned(look_at_queues(state, due, last, limits), last))
    except Exception as error:
        raise TurnFailedError(cf.InputFailed(VERSION, _QUEUES, _text(error), ended=True)) from error
    return turns


def origin_of(state: State, received: s.Input) -> str:
    """Return what the input is about, in words that are the same when it comes again.

    Returns "" for inputs of the coordinator itself, which are never refused.
    """
    match received:
        case s.HelloReceived(_, hello):
            return f"agent {hello.node}"
        case s.ReportReceived(session):
            return f"agent {state.sessions.get(session, '')}"
        case s.SubmitReceived(_, _, user, key, digest):
            return f"submit of {user}: {key} {digest}"
        case s.DrainReceived() | s.ResumeReceived() | s.RemoveReceived() | s.LostReceived():
            return f"{type(received).__name__} for {received.node}"
        case (
            s.CancelReceived() | s.ChangeReceived() | s.SignalReceived() | s.StacksReceived()
        ) as asked:
            return f"{type(asked).__name__} for job {asked.job}"
        case s.WebhookAttempted(job):
            return f"webhook of job {job}"
        case s.TimerFired(timer):
            what = timer.node or f"job {timer.job}"
            return f"timer {timer.kind.value} of {what}"
        case _:
            return ""


def _refused(state: State, received: s.Input, origin: str, error: Exception, now: Instant) -> Turn:
    done = Turn([], _refusal(received, now, f"it cannot be decided: {_text(error)}"))
    known = (VERSION, origin) in state.failed_inputs
    # Once an origin, so that one that repeats it does not fill the journal.
    if not known and not state.disk_full and len(state.failed_inputs) < ORIGINS_MAX:
        fact = cf.InputFailed(VERSION, origin, _text(error))
        apply(state, fact, now.wall)
        done.facts.append(fact)
    return done


def _refusal(received: s.Input, now: Instant, why: str) -> list[a.Effect]:
    match received:
        case s.HelloReceived(session):
            return [a.RefuseSession(session, Refused(a.INTERNAL, f"{why}; {_HINT}", soon=True))]
        case s.ReportReceived(session):
            return [a.CloseSession(session, f"a report: {why}")]
        case s.TimerFired(timer):
            return [a.SetTimer(timer, now.mono + _AGAIN_S)]
        case s.WebhookAttempted():
            return []
        case _:
            request = getattr(received, "request", None)
            return (
                [] if request is None else [a.Answer(request, a.Declined(a.INTERNAL, why, _HINT))]
            )


def _text(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}"[:_TEXT_MAX] + where

"""A turn that outlives an exception: an input that cannot be decided is refused, and on record.

`decide` changes nothing, so an input for which it fails is refused at once. If the consequences
fail, part of them is in the state and none is in the journal, so the process must end. The next
process starts from the journal; once an input of one origin has ended two processes, it is refused.
"""

from __future__ import annotations

import traceback
from typing import Final

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Refused
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.decide import VERSION, decide
from orchestrator.core.engine.turn import Turn, advance
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State

ENDED_MAX: Final = 2
ORIGINS_MAX: Final = 256
_TEXT_MAX: Final = 300
_AGAIN_S: Final = 60.0
_HINT: Final = "this is a bug of muster: the coordinator's log has the traceback; please report it"


class TurnFailedError(Exception):
    """The consequences of an input cannot be computed. The state is not to be used any more."""

    def __init__(self, fact: cf.InputFailed | None) -> None:
        super().__init__("the consequences of an input cannot be computed")
        self.fact = fact


def guarded_turn(
    state: State, received: s.Input, now: Instant, limits: Limits
) -> tuple[Turn, Exception | None]:
    """As `turn`. Returns the exception, too, if the input was refused because of it.

    Raises TurnFailedError if the process must end.
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
        return advance(state, decision, now, limits), None
    except Exception as error:
        fact = cf.InputFailed(VERSION, origin, _text(error), ended=True) if origin else None
        raise TurnFailedError(fact) from error


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

"""Replay of the journal's facts."""

from collections.abc import Iterable

from orchestrator.core.engine.apply import apply
from orchestrator.core.model.errors import InvalidTransition
from orchestrator.core.model.state import State
from orchestrator.journal.errors import CorruptJournalError
from orchestrator.journal.records import Recorded


def replay(records: Iterable[Recorded]) -> State:
    """Rebuild the state from the journal's facts. Raises JournalError."""
    state = State()
    for recorded in records:
        try:
            apply(state, recorded.fact, recorded.at)
        except (InvalidTransition, LookupError, ValueError) as error:
            raise CorruptJournalError(
                f"record {recorded.seq} of the journal ({type(recorded.fact).__name__}) does not "
                f"follow from those before it ({error})"
            ) from error
    return state

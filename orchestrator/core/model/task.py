"""The states of a task, as the coordinator sees it, and its transitions."""

from __future__ import annotations

from typing import Final

from muster.protocol.states import TaskState as S

TASK_TRANSITIONS: Final[dict[S, frozenset[S]]] = {
    S.ASSIGNED: frozenset({S.PREPARED, S.CLEANED, S.LOST}),
    S.PREPARED: frozenset({S.ARRANGED, S.EXITED, S.CLEANED, S.LOST}),
    S.ARRANGED: frozenset({S.STARTED, S.EXITED, S.CLEANED, S.LOST}),
    S.STARTED: frozenset({S.EXITED, S.CLEANED, S.LOST}),
    S.EXITED: frozenset({S.CLEANED, S.LOST}),
    S.CLEANED: frozenset(),
    S.LOST: frozenset(),
}

ORDER: Final = (S.ASSIGNED, S.PREPARED, S.ARRANGED, S.STARTED, S.EXITED, S.CLEANED)
"""The states of an undisturbed task. Reports may skip states but never go back."""

OVER: Final = frozenset({S.CLEANED, S.LOST})
"""States in which the task is proved over: nothing of it can be running on its node."""


_BEHIND: Final = {
    **{state: frozenset(ORDER[: ORDER.index(state) + 1]) for state in ORDER},
    S.LOST: frozenset[S](),
}


def reached(state: S, wanted: S) -> bool:
    """True if a task in `state` has got as far as `wanted`. A lost task has reached nothing."""
    return wanted in _BEHIND[state]

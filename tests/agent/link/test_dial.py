"""How long an agent waits before it dials again: all of them lose their coordinator at once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tenacity import AsyncRetrying, Future, RetryCallState

from agent.dial import ConnectionLostError, _pause

AGENTS = 1000


def pause(attempt: int, *, refused: bool = False) -> float:
    """The pause after so many dials that were of no use."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = attempt
    error = ConnectionLostError("gone", refused=refused)
    state.outcome = Future.construct(attempt, error, has_exception=True)
    return _pause(state)


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    ("attempt", "longest"), [(1, 0.1), (2, 0.2), (4, 0.8), (6, 3.2), (7, 5.0), (500, 5.0)]
)
def test_a_thousand_agents_come_back_spread_over_a_time_that_grows(
    attempt: int, longest: float
) -> None:
    random.seed(attempt)
    pauses = [pause(attempt) for _ in range(AGENTS)]
    assert 0 <= min(pauses) <= max(pauses) <= longest
    tenths = Counter(int(10 * one / longest) for one in pauses)
    assert all(AGENTS / 20 < tenths[tenth] < AGENTS / 5 for tenth in range(10)), tenths


def test_who_was_refused_waits_for_a_person_and_not_all_at_once() -> None:
    random.seed(1)
    pauses = [pause(attempt, refused=True) for attempt in range(1, AGENTS)]
    assert 30 <= min(pauses) <= max(pauses) <= 35
    assert max(pauses) - min(pauses) > 4

"""Limits on removal by age: when nothing is removed, and how much at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.storage.removal import Allowance, clock_doubt, hourly, may_remove_by_age

DAY = 86400.0
YEAR = 365 * DAY
OFF = 40 * DAY


@pytest.mark.parametrize(
    ("since", "ahead", "said"),
    [
        (0.0, [], ""),
        (DAY, [], ""),
        (-DAY, [DAY], ""),
        (OFF, [], "40d after the last record"),
        (-OFF, [], "40d before the last record"),
        (OFF, [0.0], ""),  # nobody ran it for so long
        (OFF, [0.0, 30.0, -OFF], ""),
        (OFF, [0.0, -OFF], "40d after the last record"),
        (0.0, [0.0, -OFF], ""),
        (0.0, [-OFF], "1 of 1 connected nodes"),
        (0.0, [-OFF, -OFF, 0.0], "2 of 3 connected nodes"),
        (OFF, [-OFF, -OFF, 0.0], "2 of 3 connected nodes"),
    ],
)
def test_the_clock_is_in_doubt_where_records_or_most_nodes_speak_against_it(
    since: float, ahead: list[float], said: str
) -> None:
    doubt = clock_doubt(since, ahead)
    assert said in doubt
    assert bool(doubt) == bool(said)


@pytest.mark.parametrize(
    ("up_s", "ahead", "may"),
    [
        (0.0, [], False),
        (3599.0, [], False),
        (3600.0, [], True),
        (0.0, [0.0], True),
        (0.0, [-OFF, 0.0], False),
        (0.0, [-OFF, 0.0, 30.0], True),
    ],
)
def test_nodes_confirm_the_clock_or_an_hour_passes_first(
    up_s: float, ahead: list[float], may: bool
) -> None:
    assert may_remove_by_age(up_s, ahead) is may


@pytest.mark.parametrize(
    ("total", "keep_s", "allowed"),
    [
        (0, YEAR, 10),
        (240, YEAR, 10),
        (24_000, YEAR, 1000),
        (24_000, 4 * DAY, 1000),
        (24_000, DAY, 2000),  # twice as many as end in an hour
        (24_000, 3600.0, 24_000),
        (24_000, 0.0, 24_000),
    ],
)
def test_so_many_go_in_an_hour(total: int, keep_s: float, allowed: int) -> None:
    assert hourly(total, keep_s) == allowed


@given(st.lists(st.floats(0, 7200), max_size=30), st.integers(0, 10_000))
def test_a_day_removes_a_day_s_part_at_the_most(steps: list[float], total: int) -> None:
    allowance, mono, gone = Allowance(), 0.0, 0
    for step in steps:
        mono += step
        may = allowance.look(mono, total, YEAR)
        allowance.take(may)
        gone += may
    assert gone <= hourly(total, YEAR) * mono / 3600


def test_a_restart_gives_no_allowance() -> None:
    assert Allowance().look(1000.0, 24_000, YEAR) == 0


def test_unused_allowance_does_not_add_up() -> None:
    allowance = Allowance()
    assert allowance.look(0.0, 24_000, YEAR) == 0
    assert allowance.look(3600.0, 24_000, YEAR) == 1000
    allowance.take(1000)
    assert allowance.look(5400.0, 24_000, YEAR) == 500
    assert allowance.look(10 * 3600.0, 24_000, YEAR) == 1000

"""Each pair meets once, and nobody meets two at a time."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.check.program.round_robin import partner, rounds


@given(st.integers(0, 64))
def test_each_pair_meets_exactly_once(count: int) -> None:
    met = []
    for number in range(rounds(count)):
        for index in range(count):
            other = partner(count, number, index)
            if other is None:
                continue
            assert partner(count, number, other) == index
            if index < other:
                met.append((index, other))
    assert sorted(met) == list(combinations(range(count), 2))


@given(st.integers(2, 3000), st.data())
def test_a_partner_has_the_same_partner_in_large_gangs(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, rounds(count) - 1))
    index = data.draw(st.integers(0, count - 1))
    other = partner(count, number, index)
    assert (other is None and count % 2) or (
        other is not None and other != index and partner(count, number, other) == index
    )


@pytest.mark.parametrize(("count", "wanted"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 3), (500, 499)])
def test_there_are_as_many_rounds_as_are_needed(count: int, wanted: int) -> None:
    assert rounds(count) == wanted

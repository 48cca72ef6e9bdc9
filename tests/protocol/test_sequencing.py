"""Numbering frames: repeated ones are dropped, missing ones are noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.link.codec import ProtocolError
from muster.protocol.link.sequencing import Link


def test_numbers_start_at_one_and_have_no_gaps() -> None:
    link = Link()
    assert [link.next_seq() for _ in range(3)] == [1, 2, 3]


def test_a_gap_is_an_error() -> None:
    link = Link()
    assert link.accept(1)
    with pytest.raises(ProtocolError, match="1 frames are missing"):
        link.accept(3)


@given(st.lists(st.integers(1, 30), max_size=60))
def test_each_frame_is_accepted_once_and_in_order(numbers: list[int]) -> None:
    link, taken = Link(), []
    for number in numbers:
        try:
            if link.accept(number):
                taken.append(number)
        except ProtocolError:
            break
    assert taken == list(range(1, len(taken) + 1))

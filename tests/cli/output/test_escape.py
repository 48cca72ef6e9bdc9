"""Bytes of a job on a terminal: no control sequence but colour gets through."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.output.escape import Spelling, spelled

PIECES = st.sampled_from(
    [b"a", b"\x1b[31m", b"\x1b[2K", b"\x1b[2J", b"\x1b]0;t\x07", b"\x9b", b"\r\n", "€".encode()]
)


@pytest.mark.parametrize(
    "kept", ["plain\ttext\r\n", "\x1b[1;31mred\x1b[0m", "\x1b[38:5:9mx", "10%\r\x1b[K20%", "ü€😀\b"]
)
def test_text_colours_and_progress_bars_stay(kept: str) -> None:
    assert spelled(kept.encode()) == kept.encode()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\x1b]0;owned\x07", rb"\x1b]0;owned\x07"),
        (b"\x1b[2J\x1b[H", rb"\x1b[2J\x1b[H"),
        (b"\x1b[1A", rb"\x1b[1A"),
        (b"\x1bc", rb"\x1bc"),
        (b"\x1bP$q\x1b\\", rb"\x1bP$q\x1b" + b"\\"),
        ("\x9b2J".encode(), rb"\x9b2J"),
        (b"\x9b2J\xff", rb"\x9b2J\xff"),
        (b"\x00\x7f", rb"\x00\x7f"),
    ],
)
def test_control_sequences_are_escaped(written: bytes, shown: bytes) -> None:
    assert spelled(written) == shown


@given(st.lists(st.one_of(st.binary(max_size=6), PIECES), max_size=12), st.data())
def test_pieces_are_spelled_as_the_whole(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    spelling = Spelling()
    shown, at = b"", 0
    while at < len(whole):
        count = data.draw(st.integers(1, len(whole) - at))
        shown += spelling.feed(whole[at : at + count])
        at += count
    shown += spelling.finish()
    assert shown == spelled(whole)
    assert not re.search(rb"\x1b(?!\[[0-9;:]*m|\[[0-2]?K)", shown)

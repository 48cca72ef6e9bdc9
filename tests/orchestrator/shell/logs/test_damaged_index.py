"""A damaged or exchanged index of a stream: all bytes are read, or an error names the file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.shell.logs.index import RECORD_BYTES, index_path
from orchestrator.shell.logs.reader import last_lines
from orchestrator.shell.logs.stream_file import LogStoreError
from tests.orchestrator.shell.logs.test_reader import Log, by_stream, covered, read


def made(root: Path) -> Log:
    log = Log(root)
    for number in range(12):
        log.add([(0, number % 2, float(number // 3), b"x" * number + b"\n")])
    log.add([(1, 0, 9.0, b"one line\n"), (0, 0, 9.5, b"the end\n")])
    log.store.close()
    return log


def index_of(log: Log, rank: int = 0, node_rank: int = 0) -> Path:
    (path,) = (
        source.path
        for source in log.sources()
        if (source.key.node_rank, source.key.rank) == (node_rank, rank)
    )
    return index_path(path)


def test_an_index_that_is_well_gives_all(tmp_path: Path) -> None:
    log = made(tmp_path)
    assert by_stream(read(log, None)) == covered(log)


@settings(max_examples=300)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), rank=st.integers(0, 1))
def test_a_flipped_bit_costs_no_byte_in_silence(
    place: float, bit: int, rank: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("flipped")
    log = made(root)
    index = index_of(log, rank)
    data = bytearray(index.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    index.write_bytes(data)
    pieces = None
    said = ""
    try:
        pieces = read(log, None)
    except LogStoreError as error:
        said = str(error)
    if pieces is None:
        assert str(index) in said
    else:
        # The last record of a stream may have become one of bytes that were not stored, which is
        # shown.
        assert by_stream(pieces) == covered(log) or any(piece.gap for piece in pieces)
    shutil.rmtree(root)


def exchange(index: Path, other: Path) -> None:
    here, there = index.read_bytes(), other.read_bytes()
    index.write_bytes(there)
    other.write_bytes(here)


def replace_by_folder(index: Path, _: Path) -> None:
    index.unlink()
    index.mkdir()


def replace_by_link(index: Path, other: Path) -> None:
    index.unlink()
    index.symlink_to(other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index, _: index.unlink(),
        lambda index, _: index.write_bytes(b""),
        lambda index, _: index.write_bytes(index.read_bytes()[:-RECORD_BYTES]),
        lambda index, _: index.write_bytes(index.read_bytes()[:-1]),
        lambda index, _: index.write_bytes(index.read_bytes()[RECORD_BYTES:]),
        lambda index, _: index.write_bytes(b"text" * 100),
        exchange,
        replace_by_folder,
        replace_by_link,
    ],
    ids=["gone", "empty", "cut", "torn", "beheaded", "text", "exchanged", "folder", "link"],
)
def test_an_index_that_is_not_the_streams_is_named(
    spoil: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    log = made(tmp_path)
    spoil(index_of(log), index_of(log, 1))
    with pytest.raises(LogStoreError, match=r"\.idx .*the bytes are in "):
        read(log, None)
    with pytest.raises(LogStoreError, match=r"\.idx .*the bytes are in "):
        list(last_lines(log.sources(), log.boundary, 100))


def test_a_stream_that_was_cut_is_named(tmp_path: Path) -> None:
    log = made(tmp_path)
    data = index_of(log).with_suffix("")
    data.write_bytes(data.read_bytes()[:-3])
    with pytest.raises(LogStoreError, match="ends at byte"):
        read(log, None)


@pytest.mark.parametrize("records", [1, 3, 200])
def test_zeros_at_the_end_of_an_index_end_no_stream(records: int, tmp_path: Path) -> None:
    """A power cut leaves them so: the length of the file was on disk, and its content not."""
    log = made(tmp_path)
    before, index = by_stream(read(log, None)), index_of(log)
    with index.open("ab") as file:
        file.write(bytes(records * RECORD_BYTES))
    again = Log(tmp_path)
    again.streams = dict(log.streams)
    assert by_stream(read(again, None)) == before
    again.add([(0, 0, 20.0, b"a line after the power cut\n")])
    assert by_stream(read(again, None)) == covered(again)
    again.store.close()

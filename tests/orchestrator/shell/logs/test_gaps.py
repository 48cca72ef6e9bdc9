"""Bytes that count and are not stored: holes of a log, and what exceeds a bound."""

import asyncio
import os
from pathlib import Path

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.log_channel import StreamId, StreamKind
from orchestrator.core.storage.log_space import Bounds
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.gaps import Gap, gap_text
from orchestrator.shell.logs.index import RECORD_BYTES, IndexFile, index_path
from orchestrator.shell.logs.layout import bytes_below
from orchestrator.shell.logs.reader import (
    History,
    Live,
    Piece,
    Source,
    history,
    last_lines,
    live,
    parse_cursor,
    take,
)
from orchestrator.shell.logs.store import LogStore

OUT = StreamId(TaskId("7.1.0"), StreamKind.STDOUT, 0)
ERR = StreamId(TaskId("7.1.0"), StreamKind.STDERR, 0)
OTHER = StreamId(TaskId("7.1.1"), StreamKind.STDOUT, 1)
NEXT_JOB = StreamId(TaskId("8.1.0"), StreamKind.STDOUT, 0)
JOB = JobId(7)
TIB = 1 << 40
WIDE = Bounds(TIB, TIB)


class Rig:
    def __init__(self, root: Path, bounds: Bounds = WIDE) -> None:
        self.root = root
        self.store = LogStore(root, ChangeCounters(), SystemClock(), bounds=bounds)
        self.acks: dict[StreamId, int] = {}
        self.ts = 1.0

    def put(self, offset: int, data: bytes, stream: StreamId = OUT) -> int | None:
        self.ts += 1
        return self.store.append(stream, offset, memoryview(data), self.ts, self.synced)

    def hole(self, offset: int, length: int, stream: StreamId = OUT) -> int | None:
        self.ts += 1
        return self.store.skip(stream, offset, length, self.ts, self.synced)

    def synced(self, stream: StreamId, offset: int | None) -> None:
        assert offset is not None
        self.acks[stream] = offset

    def sources(self) -> list[Source]:
        return [
            Source(k, s.path, s.last_seq, indexed=s.indexed)
            for k, s in self.store.job(JOB).streams.items()
        ]

    def pieces(self) -> list[Piece]:
        boundary = self.store.job(JOB).next_seq
        records = list(history(self.sources(), boundary, None))
        arrived = list(live(self.sources(), Live(0, 0), boundary))
        assert shown(records) == shown(arrived), "history and what comes live are the same"
        return records

    def again(self, bounds: Bounds = WIDE) -> "Rig":
        self.store.close()
        return Rig(self.root, bounds)


def shown(pieces: list[Piece]) -> list[tuple[int, bytes | str]]:
    return [(piece.offset, piece.gap or piece.data) for piece in pieces]


def never_written(count: int) -> str:
    return f"{count} bytes were never written: the log file has a hole here"


def test_a_hole_counts_costs_nothing_and_is_shown(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.put(0, b"before\n") == 7
    assert rig.hole(7, TIB) == TIB
    assert rig.hole(7, TIB) == 0, "said twice"
    assert rig.hole(TIB + 20, 5) is None, "bytes before it are missing"
    assert rig.put(TIB + 7, b"after\n") == 6
    expected = [(0, b"before\n"), (7, never_written(TIB)), (TIB + 7, b"after\n")]
    assert shown(rig.pieces()) == expected
    assert bytes_below(tmp_path) < 100_000
    again = rig.again()
    assert again.store.size(OUT) == TIB + 13
    assert shown(again.pieces()) == expected
    assert again.put(TIB + 13, b"more\n") == 5
    assert shown(again.pieces()) == [*expected, (TIB + 13, b"more\n")]
    again.store.close()


def test_many_gaps_are_read_in_slices(tmp_path: Path) -> None:
    """They have no bytes that would end a slice."""
    rig = Rig(tmp_path)
    for at in range(0, 4000, 2):
        assert rig.hole(at, 1) == 1
        assert rig.put(at + 1, b"x") == 1
    pieces = iter(rig.pieces())
    sizes = []
    while taken := take(pieces, 1 << 20):
        sizes.append(len(taken))
    assert (sum(sizes), max(sizes)) == (4000, 512)
    rig.store.close()


def test_a_hole_at_the_end_that_grows_is_one_gap(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(100):
        assert rig.hole(120 * number, 120) == 120
    expected = [(0, never_written(12000))]
    assert shown(rig.pieces()) == expected
    assert rig.store.stream(OUT).last_seq == 1
    assert rig.store.end(OUT, 12000, rig.synced)
    assert shown(rig.pieces()) == expected
    again = rig.again()
    assert again.store.stream(OUT).ended
    assert shown(again.pieces()) == expected
    again.store.close()


def test_a_reader_who_comes_back_sees_a_gap_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(0, b"a\n")
    rig.hole(2, 100)
    rig.put(102, b"b\n")
    pieces = rig.pieces()
    boundary = rig.store.job(JOB).next_seq
    for number, piece in enumerate(pieces):
        place = parse_cursor(str(piece.place))
        assert isinstance(place, History)
        rest = list(history(rig.sources(), boundary, place))
        assert shown(rest) == shown(pieces[number + 1 :])
    arrived = list(live(rig.sources(), Live(0, 0), boundary))
    for number, piece in enumerate(arrived):
        assert isinstance(piece.place, Live)
        rest = list(live(rig.sources(), piece.place, boundary))
        assert shown(rest) == shown(arrived[number + 1 :])
    (tail,) = last_lines(rig.sources(), boundary, 1)
    assert shown(list(history(rig.sources(), boundary, tail))) == shown(pieces[1:])
    rig.store.close()


@pytest.mark.parametrize("left", [0, RECORD_BYTES, RECORD_BYTES + 3, 2 * RECORD_BYTES])
def test_a_power_cut_in_a_gap_loses_no_byte(tmp_path: Path, left: int) -> None:
    """The record of the gap, or the one that closes it, did not get to the disk."""
    rig = Rig(tmp_path)
    rig.put(0, b"first\n")
    rig.hole(6, 1 << 20)
    rig.put(6 + (1 << 20), b"last\n")
    rig.store.close()
    index = index_path(tmp_path / "7/1/0/stdout.0")
    index.write_bytes(index.read_bytes()[:left])
    again = Rig(tmp_path)
    at = again.store.size(OUT)
    assert 6 <= at < 1 << 20, "it asks for the rest again"
    again.hole(at, 6 + (1 << 20) - at)
    again.put(6 + (1 << 20), b"last\n")
    texts = [piece.data for piece in again.pieces() if piece.gap is None]
    assert b"".join(texts).replace(b"\0", b"") == b"first\nlast\n"
    again.store.close()


def test_a_crash_between_the_record_and_the_gap_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(0, b"first\n")
    rig.hole(6, 1 << 20)
    rig.store.close()
    os.truncate(tmp_path / "7/1/0/stdout.0", 6)
    again = Rig(tmp_path)
    assert shown(again.pieces()) == [(0, b"first\n")]
    assert again.hole(6, 50) == 50
    assert shown(again.pieces()) == [(0, b"first\n"), (6, never_written(50))]
    again.store.close()


def test_bytes_after_a_gap_survive_a_crash_before_their_record(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.hole(0, 1 << 20)
    rig.put(1 << 20, b"after\n")
    rig.store.close()
    index = index_path(tmp_path / "7/1/0/stdout.0")
    assert len(IndexFile(tmp_path / "7/1/0/stdout.0")) == 3
    os.truncate(index, 2 * RECORD_BYTES)
    again = Rig(tmp_path)
    assert again.store.size(OUT) == (1 << 20) + 6
    assert shown(again.pieces()) == [(0, never_written(1 << 20)), (1 << 20, b"after\n")]
    again.store.close()


@pytest.mark.parametrize("length", [1 << 63, 10**40])
def test_after_a_hole_that_no_file_can_have_all_is_acknowledged_and_nothing_stored(
    tmp_path: Path, length: int
) -> None:
    rig = Rig(tmp_path)
    rig.put(0, b"a")
    expected = [(0, b"a"), (1, gap_text(Gap.TOO_LONG, 1))]
    assert rig.hole(1, length) == length
    assert shown(rig.pieces()) == expected
    assert rig.put(1 + length, b"b") == 1
    assert rig.hole(2 + length, 5) == 5
    asyncio.run(rig.store.sync())
    assert rig.acks[OUT] == 7 + length
    # A coordinator that starts anew has the stream from its file's end on again.
    again = rig.again()
    assert again.store.size(OUT) == 2
    assert again.hole(2, length - 1) == length - 1
    assert again.put(1 + length, b"b") == 1
    assert again.store.end(OUT, 2 + length, again.synced)
    assert shown(again.pieces()) == expected
    last = again.again()
    assert last.store.stream(OUT).ended
    assert shown(last.pieces()) == expected
    last.store.close()


def test_beyond_the_bound_of_a_task_bytes_are_acknowledged_and_others_stored(
    tmp_path: Path,
) -> None:
    bounds = Bounds(100_000, 10_000)
    rig = Rig(tmp_path, bounds)
    at = 0
    for _ in range(30):
        assert rig.put(at, b"x" * 1000) == 1000
        at += 1000
    size = bytes_below(tmp_path)
    assert 10_000 <= size < 14_000
    assert rig.put(at, b"y" * 1000) == 1000
    assert rig.hole(at + 1000, 1 << 30) == 1 << 30
    assert bytes_below(tmp_path) == size, "what is beyond costs nothing at all"
    assert rig.put(0, b"aside\n", ERR) == 6, "another stream of the task has the same bound"
    assert rig.put(0, b"other\n", OTHER) == 6
    assert rig.put(0, b"next\n", NEXT_JOB) == 5
    gaps = [(p.key.kind, p.key.rank, p.gap) for p in rig.pieces() if p.gap is not None]
    assert [gap[:2] for gap in gaps] == [("stdout", 0), ("stderr", 0)]
    assert all("job_logs.task_bytes_max" in str(gap[2]) for gap in gaps)
    assert b"other\n" in [p.data for p in rig.pieces()]
    assert rig.store.dropped_bytes == 30_000 - 10_000 + (1 << 30) + 1000 + 6
    again = rig.again(bounds)
    end = again.store.size(OUT)
    assert end == at + 1000 + (1 << 30), "the offsets stay right"
    assert again.put(end, b"z") == 1
    assert bytes_below(tmp_path / "7/1/0") < 14_000
    assert again.store.end(OUT, end + 1, again.synced), "its end is taken"
    wider = again.again()
    assert wider.put(6, b"stored again\n", ERR) == 13, "a larger bound stores again"
    records = history(wider.sources(), wider.store.job(JOB).next_seq, None)
    assert (6, b"stored again\n") in shown(list(records))
    wider.store.close()


def test_beyond_the_bound_of_a_job_all_its_tasks_stop(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Bounds(10_000, 9_000))
    rig.put(0, b"x" * 6000)
    rig.put(0, b"x" * 6000, OTHER)
    assert rig.put(6000, b"late\n") == 5
    assert rig.put(0, b"next\n", NEXT_JOB) == 5
    (gap,) = [p for p in rig.pieces() if p.gap is not None]
    assert "5 bytes so far are not stored" in str(gap.gap)
    assert "job_logs.job_bytes_max" in str(gap.gap)
    assert rig.store.job(JobId(8)).usage.job > 0
    rig.store.close()

"""Many streams as one: nothing missing, nothing twice, from every cursor on."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, TaskId, task_id
from muster.protocol.link.log_channel import StreamId, StreamKind
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.index import incomplete_tail
from orchestrator.shell.logs.reader import (
    BadCursorError,
    History,
    Live,
    Piece,
    Place,
    Source,
    history,
    last_lines,
    live,
    parse_cursor,
)
from orchestrator.shell.logs.store import LogStore

JOB = JobId(1)
# node rank, rank, time, bytes
Arrival = tuple[int, int, float, bytes]
arrivals = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 6).map(float),
        st.sampled_from([b"a\n", b"bb\n", b"c", b"\n\n", "€x\n".encode(), b"\xff\xfe"]),
    ),
    max_size=25,
)


class Log:
    """A job's log made of arrivals; `everything` is what a reader must see of each stream."""

    def __init__(self, root: Path) -> None:
        self.store = LogStore(root, ChangeCounters(), SystemClock())
        self.streams: dict[tuple[int, int], bytes] = {}

    def add(self, made: list[Arrival]) -> None:
        for node_rank, rank, ts, data in made:
            before = self.streams.get((node_rank, rank), b"")
            stream = StreamId(task_id(JOB, 1, node_rank), StreamKind.STDOUT, rank)
            taken = self.store.append(stream, len(before), memoryview(data), ts, lambda *_: None)
            assert taken == len(data)
            self.streams[node_rank, rank] = before + data

    @property
    def boundary(self) -> int:
        return self.store.job(JOB).next_seq

    def sources(self) -> list[Source]:
        return [
            Source(key, s.path, s.last_seq, indexed=s.indexed)
            for key, s in self.store.job(JOB).streams.items()
        ]


def by_stream(pieces: list[Piece]) -> dict[tuple[int, int], bytes]:
    """The bytes of each stream; every piece must begin where the one before it ended."""
    found: dict[tuple[int, int], bytes] = {}
    for piece in pieces:
        key = (piece.key.node_rank, piece.key.rank)
        found[key] = found.get(key, b"") + piece.data
    return found


def read(log: Log, place: Place | None) -> list[Piece]:
    """All that a reader who comes with `place` sees now."""
    pieces: list[Piece] = []
    if isinstance(place, Live):
        after = place
    else:
        boundary = log.boundary if place is None else place.boundary
        pieces += history(log.sources(), boundary, place)
        after = Live(boundary, 0)
    return pieces + list(live(log.sources(), after, log.boundary))


def covered(log: Log) -> dict[tuple[int, int], bytes]:
    """Return the indexed bytes: all except an incomplete character at the end."""
    cut = {key: data[: len(data) - incomplete_tail(data)] for key, data in log.streams.items()}
    return {key: data for key, data in cut.items() if data}


@given(arrivals, arrivals)
def test_every_cursor_resumes_without_loss_or_repeat(
    tmp_path_factory: pytest.TempPathFactory, before: list[Arrival], after: list[Arrival]
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    log.add(before)
    first = read(log, None)
    assert by_stream(first) == covered(log)
    keys = [(p.ts, p.key, p.offset) for p in first]
    assert keys == sorted(keys), "history is in the order of time"
    log.add(after)
    for seen in range(1, len(first) + 1):
        place = parse_cursor(str(first[seen - 1].place))
        assert place == first[seen - 1].place
        rest = read(log, place)
        assert by_stream(first[:seen] + rest) == covered(log)
        for again in range(len(rest)):
            place = parse_cursor(str(rest[again].place))
            assert by_stream(first[:seen] + rest[: again + 1] + read(log, place)) == covered(log)
    log.store.close()


def tail_of(sources: Iterable[Source], boundary: int, lines: int) -> History | None:
    """The result of a whole search for the last lines."""
    return next((found for found in last_lines(sources, boundary, lines) if found), None)


def test_a_search_for_the_last_lines_pauses_after_each_slice(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add([(0, 0, float(n), b"short\n") for n in range(2000)])
    steps = list(last_lines(log.sources(), log.boundary, 1990))
    assert steps[:3] == [None] * 3
    assert len(steps) == 4
    assert steps[-1] is not None
    log.store.close()


@given(arrivals, st.integers(1, 12))
def test_the_last_lines_are_those_of_the_merged_text(
    tmp_path_factory: pytest.TempPathFactory, made: list[Arrival], lines: int
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    log.add(made)
    whole = b"".join(p.data for p in history(log.sources(), log.boundary, None))
    start = tail_of(log.sources(), log.boundary, lines)
    shown = b"".join(p.data for p in history(log.sources(), log.boundary, start))
    assert shown == b"".join(re.findall(rb"[^\n]*\n|[^\n]+$", whole)[-lines:])
    log.store.close()


def test_live_follows_the_order_of_arrival(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add([(0, 0, 9.0, b"first\n"), (1, 0, 2.0, b"second\n"), (0, 0, 9.0, b"third\n")])
    pieces = list(live(log.sources(), Live(1, 0), log.boundary))
    assert [p.data for p in pieces] == [b"first\n", b"second\n", b"third\n"]
    past = list(history(log.sources(), log.boundary, None))
    assert [p.data for p in past] == [b"second\n", b"first\n", b"third\n"]
    log.store.close()


def test_a_large_chunk_comes_in_pieces_and_resumes_within(tmp_path: Path) -> None:
    data = "0123456789€".encode() * 20_000
    log = Log(tmp_path)
    log.add([(0, 0, 1.0, data)])
    pieces = read(log, None)
    assert len(pieces) > 1
    assert all(piece.data.decode() for piece in pieces)
    for seen in range(1, len(pieces) + 1):
        rest = read(log, parse_cursor(str(pieces[seen - 1].place)))
        assert b"".join(p.data for p in pieces[:seen] + rest) == data
    log.store.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "l",
        "l1",
        "l1.x",
        "l1.2\n",
        "l" + "9" * 19 + ".0",
        "h1.0x1.0p0.1.0.nope.0.3",
        "h1.0x1.0p0.1.0.stdout./etc.3",
        "h1.0x1.0p0.1.0.stdout.0.3 ",
        "h1.inf.1.0.stdout.0.3",
    ],
)
def test_an_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadCursorError):
        parse_cursor(text)


def test_an_empty_log_has_no_pieces(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert read(log, None) == []
    assert tail_of(log.sources(), log.boundary, 5) is None
    assert TaskId("1.1.0") == task_id(JOB, 1, 0)
    assert isinstance(parse_cursor("h1.0x1.0p0.1.0.setup.0"), History)
    log.store.close()


@given(
    st.text()
    | st.from_regex(r"l[0-9]+\.[0-9]+", fullmatch=True)
    | st.from_regex(
        r"h[0-9]+\.(-?0x[01]\.[0-9a-f]{1,13}p-?[0-9]{1,4}|-?inf|nan)\.[0-9]+\.[0-9]+"
        r"\.(stdout|stderr|agent)(\.[0-9]+)?\.[0-9]+",
        fullmatch=True,
    )
)
@example("h3.0x1.ap9999.1.0.stdout.0.3")
@example("h3.inf.1.0.stdout.0.3")
@example("h3.nan.1.0.stdout.0.3")
@example(f"l{'9' * 5000}.0")
def test_any_text_is_a_place_or_no_cursor(text: str) -> None:
    try:
        place = parse_cursor(text)
    except BadCursorError:
        return
    assert parse_cursor(str(place)) == place

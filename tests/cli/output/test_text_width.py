"""Text and tables for terminals of every width."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.cli.output.table import Column, table_lines
from muster.cli.output.text_width import ELLIPSIS, cells, cut, wrap
from tests.cli.terminal import Terminal
from tests.client.fake_coordinator import FakeCoordinator, job_view

COLUMNS = (
    Column("ID", right=True),
    Column("NAME", name=True),
    Column("USER", name=True, drop=2),
    Column("NODES", right=True, drop=1),
    Column("REASON", elastic=True, wraps=True, drop=3),
)
TEXT = st.text(st.sampled_from("ab -/日本é\u0301.,"), max_size=70)
WIDTHS = st.integers(20, 300)


@given(TEXT, st.integers(2, 90))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cells(line) <= width for line in lines)
    kept = "".join(line.removesuffix(ELLIPSIS) for line in lines)
    assert kept.replace(" ", "") == text.replace(" ", "")


def test_words_stay_whole_where_they_can() -> None:
    assert wrap("needs 3 nodes, 0 free: gpu-01 runs job 7", 16) == [
        "needs 3 nodes, 0",
        "free: gpu-01",
        "runs job 7",
    ]
    assert wrap("/a/very/long/path that is cut", 10) == ["/a/very/l…", "ong/path", "that is", "cut"]


@given(TEXT, st.integers(1, 90))
def test_cut_text_is_marked(text: str, width: int) -> None:
    made = cut(text, width)
    assert cells(made) <= width
    assert made == text or made.endswith(ELLIPSIS)


@settings(deadline=None)
@given(WIDTHS, st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=4))
def test_a_table_fits_every_terminal(width: int, rows: list[tuple[str, str, str]]) -> None:
    made = [
        (str(number), name, user, "3 of 2..4", why) for number, (name, user, why) in enumerate(rows)
    ]
    lines = table_lines(COLUMNS, made, width, colour=False)
    assert max(cells(line) for line in lines) <= width


def test_the_least_important_columns_go_first() -> None:
    row = ("1", "train", "alice", "3 of 2..4", "on gpu-01, gpu-02 and gpu-03")
    shown = [
        table_lines(COLUMNS, [row], width, colour=False)[0].split() for width in (80, 40, 32, 20)
    ]
    assert shown == [
        ["ID", "NAME", "USER", "NODES", "REASON"],
        ["ID", "NAME", "USER", "NODES"],
        ["ID", "NAME", "USER", "NODES"],
        ["ID", "NAME", "NODES"],
    ]


def test_a_long_reason_goes_on_below_itself() -> None:
    row = (
        "1",
        "train",
        "alice",
        "4",
        "needs 4 nodes, 0 free: gpu-01 runs job 7, gpu-02 runs job 8",
    )
    assert table_lines(COLUMNS, [row], 60, colour=False)[1:] == [
        " 1  train  alice      4  needs 4 nodes, 0 free: gpu-01 runs",
        "                         job 7, gpu-02 runs job 8",
    ]


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(
    environ: dict[str, str], fake: FakeCoordinator, width: int
) -> None:
    reason = "needs 3 nodes, 0 free: " + "; ".join(f"gpu-{n} runs job {n}" for n in range(9))
    fake.put(job_view(7, name="x" * 63, reason=type(job_view().reason)("waiting", reason)))
    for verb in (("ps",), ("show", "7")):
        terminal = Terminal(environ, *verb, width=width)
        assert terminal.end() == 0
        # The first line of `show` is a heading: its name is for copying, so it stays whole.
        lines = terminal.lines if verb == ("ps",) else terminal.lines[1:]
        assert lines
        assert max(map(cells, lines)) <= width, verb
        assert b"\x1b[32mRUNNING\x1b[0m" in terminal.raw


@pytest.mark.parametrize(
    ("arguments", "env"), [((), {"NO_COLOR": "1"}), (("--no-color",), {}), ((), {"TERM": "dumb"})]
)
def test_colours_can_be_refused(
    environ: dict[str, str], fake: FakeCoordinator, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    fake.put(job_view())
    for verb in (("ps",), ("show", "42")):
        terminal = Terminal({**environ, **env}, *verb, *arguments, width=80)
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw

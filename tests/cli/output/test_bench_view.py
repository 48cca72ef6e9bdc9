"""The benchmark on a terminal: rows one by one under their titles, bars, both runs side by side."""

import pytest

from muster.bench.results import PassLine, Row, Run, RunInfo
from muster.cli.output import bench_view
from muster.cli.output.bench_view import (
    bandwidth_text,
    bar,
    print_comparison,
    print_plot,
    print_run,
    row_printer,
    time_text,
)
from muster.protocol.observations.traffic import Carrier

ABOUT = RunInfo(16, 2, "nccl", "NVIDIA H100 80GB HBM3", "2.9.0", nccl="2.27.5")
NO_LINE = PassLine(None, None, "no pass line: nothing was measured")


def row(size: int, busbw: float, wrong: int = 0) -> Row:
    return Row(size, size // 4, 20, 123456.7, 123456.7, 99999.9, busbw / 1.875, busbw, wrong)


def run(rdma: str, *rows: Row, line: PassLine = NO_LINE) -> Run:
    return Run(
        7, rdma, ("a", "b"), ABOUT, rows, "RDMA over 8 HCAs", Carrier.UNKNOWN, "unknown", line
    )


@pytest.fixture(params=[80, 50])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of that width."""
    columns: int = request.param
    for module in ("bench_view", "text_width", "table"):
        monkeypatch.setattr(f"muster.cli.output.{module}.terminal_width", lambda: columns)
    monkeypatch.setattr(bench_view, "on_terminal", lambda: True)
    return columns


def test_everything_fits(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    show = row_printer(silent=False)
    rows = [row(1 << 20, 3.2), row(1 << 30, 389.123), row(4, 0.0004, wrong=12345)]
    show(ABOUT)
    for found in rows:
        show(found)
    fast = run(
        "preferred", *rows, line=PassLine(320.0, True, "389.1 GB/s, and 320.0 GB/s is the line")
    )
    slow = run("off", *(row(one.size, one.busbw_gb_s / 4) for one in rows))
    print_run(fast)
    print_comparison(fast, slow)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    titles = next(line for line in lines if "SIZE" in line)
    (sized,) = [line for line in lines if line.split()[:1] == ["1G"] and "389" in line][:1]
    assert titles.index("WRONG") + len("WRONG") == len(titles)
    assert sized.split()[-1] == "0"
    assert any("4.00x" in line for line in lines)
    assert any(line.startswith("pass: 389.1 GB/s") for line in lines)


def test_rows_stand_under_their_titles(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    show = row_printer(silent=False)
    show(ABOUT)
    show(row(1 << 20, 3.2))
    *_, titles, shown = capsys.readouterr().out.splitlines()
    assert titles.index("BUSBW") + len("BUSBW") == shown.index("3.20") + len("3.20")


def test_there_are_no_bars_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_plot([run("preferred", row(4, 1.0))])
    assert capsys.readouterr().out == ""


def test_silent_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    row_printer(silent=True)(ABOUT)
    assert capsys.readouterr().out == ""


def test_results_below_the_line_or_wrong_sums_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_run(run("preferred", row(4, 1.0, wrong=3), line=PassLine(9.0, False, "1.0 GB/s")))
    said = capsys.readouterr().out
    assert "BELOW THE LINE: 1.0 GB/s" in said
    assert "WRONG: 3 elements" in said


@pytest.mark.parametrize(
    ("share", "unicode", "drawn"),
    [
        (0.0, True, ""),
        (1.0, True, "████████"),
        (0.5, True, "████"),
        (0.0001, True, "▏"),
        (0.515625, True, "████▏"),
        (0.5, False, "####"),
        (0.0001, False, "#"),
    ],
)
def test_bars(share: float, unicode: bool, drawn: str) -> None:
    assert bar(share, 8, unicode=unicode) == drawn


@pytest.mark.parametrize(
    ("us", "text"),
    [(12.34, "12.3 us"), (999.94, "1 ms"), (1000, "1 ms"), (2.5e6, "2.5 s"), (1.2e9, "1200 s")],
)
def test_times(us: float, text: str) -> None:
    assert time_text(us) == text


@pytest.mark.parametrize(
    ("gb_s", "text"),
    [(0.0, "0"), (0.00041, "0.00041"), (0.806, "0.806"), (1.234, "1.23"), (389.123, "389")],
)
def test_bandwidths(gb_s: float, text: str) -> None:
    assert bandwidth_text(gb_s) == text

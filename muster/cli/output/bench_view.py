"""Benchmark results for people: rows as they arrive, a summary, and bars on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from muster.bench.results import Row, Run, RunInfo, factors
from muster.bench.sizes import size_text
from muster.cli.output.format import painted, safe
from muster.cli.output.table import Cell, Column, print_table, table_lines
from muster.cli.output.text_width import on_terminal, paragraph, terminal_width, use_colour

# Because rows are printed one by one, the titles have the width of the values below.
_COLUMNS: Final = (
    Column(" SIZE", right=True),
    Column("ITERS", right=True, drop=2),
    Column("    TIME", right=True, drop=1),
    Column("     P50", right=True, drop=4),
    Column("     MIN", right=True, drop=5),
    Column("  ALGBW", right=True, drop=3),
    Column("  BUSBW", right=True),
    Column(" Gbit/s", right=True, drop=6),
    Column("WRONG", right=True),
)
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_PLAIN_BAR: Final = "#"
_LABEL: Final = 11
_NUMBER: Final = 9


def row_printer(*, silent: bool) -> Callable[[RunInfo | Row], None]:
    """Return a function that prints results as they arrive: a description, the titles, each row."""

    def show(found: RunInfo | Row) -> None:
        if silent:
            return
        if isinstance(found, RunInfo):
            print(paragraph(safe(_about(found))))
        lines = table_lines(
            _COLUMNS,
            [_cells(found)] if isinstance(found, Row) else [],
            terminal_width(),
            colour=use_colour(),
        )
        print("\n".join(lines[isinstance(found, Row) :]), flush=True)

    return show


def print_run(run: Run) -> None:
    """Print the summary below the rows of a run."""
    if run.plan:
        print(paragraph(safe(run.plan), first="planned:   "))
    print(paragraph(safe(run.transport), first="transport: "))
    verdict = {None: "", True: "pass: ", False: "BELOW THE LINE: "}[run.line.passed]
    text = verdict + run.line.text
    colour = {None: None, True: "green", False: "red"}[run.line.passed]
    lines = paragraph(safe(text))
    print(click.style(lines, fg=colour) if colour and use_colour() else lines)
    if run.wrong:
        print(paragraph(f"WRONG: {run.wrong} elements of the sums have a wrong value"))


def print_comparison(fast: Run, slow: Run) -> None:
    """Print both runs side by side, with the factor between them."""
    times = factors(fast.rows, slow.rows)
    other = {row.size: row for row in slow.rows}
    columns = (
        Column("SIZE", right=True),
        Column(f"RDMA {fast.rdma.upper()}", right=True),
        Column("RDMA OFF", right=True),
        Column("FACTOR", right=True),
        Column("TIME", right=True, drop=2),
        Column("TIME OFF", right=True, drop=1),
    )
    print("\nbus bandwidth in GB/s, with RDMA and without")
    print_table(
        columns,
        [
            [
                size_text(row.size),
                bandwidth_text(row.busbw_gb_s),
                bandwidth_text(other[row.size].busbw_gb_s),
                f"{times[row.size]:.2f}x" if row.size in times else "-",
                time_text(row.time_us),
                time_text(other[row.size].time_us),
            ]
            for row in fast.rows
            if row.size in other
        ],
    )
    if fast.about is not None and fast.about.backend != "nccl":
        print(paragraph(f"both went over TCP: {fast.about.backend} supports nothing else"))
    print_plot([fast, slow])


def print_plot(runs: Sequence[Run]) -> None:
    """Draw bars of the bus bandwidth by size, on a terminal only, in its full width."""
    width = terminal_width()
    if width is None or not on_terminal():
        return
    marks = {run.line.gb_s for run in runs if run.line.gb_s is not None}
    most = max([row.busbw_gb_s for run in runs for row in run.rows] + list(marks), default=0.0)
    room = width - _LABEL - _NUMBER - 1
    if most <= 0.0 or room < 8:
        return
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    print("\nbus bandwidth, GB/s")
    for size in sorted({row.size for run in runs for row in run.rows}):
        for run in runs:
            for row in run.rows:
                if row.size == size:
                    label = size_text(size) if run is runs[0] else ""
                    kind = f"{label:>5} {_short(run, runs):<5}"
                    drawn = bar(row.busbw_gb_s / most, room, unicode=unicode)
                    colour = "green" if run is runs[0] else "yellow"
                    shown = click.style(drawn, fg=colour) if use_colour() else drawn
                    print(f"{kind}{shown} {bandwidth_text(row.busbw_gb_s)}")


def bar(share: float, room: int, *, unicode: bool) -> str:
    """Draw `share` (0 to 1) of `room` cells; values above zero are always visible."""
    if not unicode:
        return _PLAIN_BAR * max(round(share * room), 1 if share > 0 else 0)
    eighths = max(round(share * room * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def time_text(us: float) -> str:
    """Format a time with three significant figures in a suitable unit."""
    for limit, unit, scale in ((999.5, "us", 1.0), (999.5e3, "ms", 1e3)):
        if us < limit:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s" if us < 999.5e6 else f"{us / 1e6:.0f} s"


def bandwidth_text(gb_s: float) -> str:
    """Format a bandwidth with three significant figures; two below 0.01."""
    if gb_s < 0.01:
        return f"{gb_s:.2g}"
    places = 0 if gb_s >= 100 else 1 if gb_s >= 10 else 2 if gb_s >= 1 else 3
    return f"{gb_s:.{places}f}"


def _short(run: Run, runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    return "off" if run.rdma == "off" else "rdma"


def _about(about: RunInfo) -> str:
    ranks = f"{about.ranks} rank{'' if about.ranks == 1 else 's'}"
    nodes = f"{about.nodes} node{'' if about.nodes == 1 else 's'}"
    nccl = f" {about.nccl}" if about.nccl else ""
    why = f" ({about.why})" if about.why else ""
    return (
        f"all-reduce of {ranks} on {nodes}, {about.backend}{nccl}{why}, {about.device}, "
        f"torch {about.torch}; {about.warmups} warm-ups, up to {about.iterations} iterations; "
        "bandwidth in GB/s (1e9 bytes)"
    )


def _cells(row: Row) -> list[str | Cell]:
    return [
        size_text(row.size),
        str(row.iterations),
        time_text(row.time_us),
        time_text(row.p50_us),
        time_text(row.min_us),
        bandwidth_text(row.algbw_gb_s),
        bandwidth_text(row.busbw_gb_s),
        bandwidth_text(row.busbw_gb_s * 8),
        Cell(str(row.wrong), painted("red") if row.wrong else None),
    ]

"""Results as a table and a document: figures, machine and versions."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.launch.processor import pace
from benchmarks.launch.samples import Row

_PACKAGES = ("aiohttp", "msgspec", "click", "torch")
P99_SAMPLES = 100
"""Number of samples from which on the 99th percentile is not the greatest one."""


def machine() -> dict[str, str]:
    """Return place, time and versions of this run."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{os.cpu_count()} x {_cpu_model()}",
        "memory": _memory(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": " ".join(f"{name} {version}" for name, version in versions.items()),
        "load before": "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg()),
        "pace": pace(),
    }


def table(where: dict[str, str], rows: list[Row], notes: list[str]) -> str:
    """Return everything as lines of Markdown.

    If a row has enough samples for it, there is a column of the 99th percentile.
    """
    lines = [f"{name}: {value}" for name, value in where.items()]
    rows = [row for row in rows if row.samples]
    p99 = ("p99",) if any(_has_p99(row) for row in rows) else ()
    head = ("figure", "what", "who", "unit", "n", "median", "p95", *p99, "least - most", "aim", "")
    cells = [head, *(_cells(row, p99=bool(p99)) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    rule = tuple("-" * width for width in widths)
    lines.append("")
    lines.extend(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in (head, rule, *cells[1:])
    )
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def write_json(path: Path, where: dict[str, str], rows: list[Row], notes: list[str]) -> None:
    """Write everything with all samples as JSON."""
    figures: list[dict[str, Any]] = [
        {
            "figure": row.figure,
            "what": row.what,
            "who": row.who,
            "unit": row.unit,
            "aim": str(row.aim) if row.aim else None,
            "met": row.is_met,
            "median": row.median,
            "p95": row.p95,
            "p99": row.percentile(99) if _has_p99(row) else None,
            "samples": row.samples,
        }
        for row in rows
        if row.samples
    ]
    document = {"machine": where, "figures": figures, "notes": notes}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _has_p99(row: Row) -> bool:
    return len(row.samples) >= P99_SAMPLES


def _cells(row: Row, *, p99: bool) -> tuple[str, ...]:
    least, most = row.spread
    rare = (_number(row.percentile(99)) if _has_p99(row) else "",) if p99 else ()
    met = {None: "", True: "met", False: "NOT MET"}[row.is_met]
    return (
        row.figure,
        row.what,
        row.who,
        row.unit,
        str(len(row.samples)),
        _number(row.median),
        _number(row.p95),
        *rare,
        f"{_number(least)} - {_number(most)}",
        str(row.aim or ""),
        met,
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    kib = int(Path("/proc/meminfo").read_text().split(None, 2)[1])
    return f"{kib / 1024**2:.0f} GiB"


def output_of(*argv: str) -> str:
    """Return the first line that a program prints, for versions."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return next(iter((done.stdout or done.stderr).splitlines()), "").strip()

"""Plot of the results of `./dev bench queue --quality --json FILE`, as SVG.

python -m benchmarks.queue.plot FILE > docs/explanation/scheduling-quality.svg
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

COLOURS: Final = ("#9aa0a6", "#1a73e8", "#12a37f", "#f29900")
WIDTH, HEIGHT = 380, 210
LEFT, TOP, GAP = 64, 60, 84
BAR = 22

Row = dict[str, Any]
Panel = tuple[str, Callable[[Row], float]]

PANELS: Final[tuple[Panel, ...]] = (
    ("mean bounded slowdown", lambda seed: seed["slowdown"]),
    ("mean wait in minutes", lambda seed: seed["wait_s"] / 60),
    ("wait of the largest tenth in minutes", lambda seed: seed["large_s"] / 60),
)
"""Titles, and the figure of one seed."""


def plot(rows: list[Row]) -> str:
    """Return bars by load and policy on a logarithmic scale; one column for each workload."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    wide = LEFT + len(workloads) * (WIDTH + GAP)
    high = TOP + len(PANELS) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">',
        "<style>text { font: 13px sans-serif }</style>",
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for at, policy in enumerate(policies):
        x = LEFT + at * 150
        parts.append(f'<rect x="{x}" y="12" width="14" height="14" fill="{COLOURS[at]}"/>')
        parts.append(_text(x + 20, 24, policy))
    for down, (title, figure) in enumerate(PANELS):
        for right, name in enumerate(workloads):
            found = {
                (row["load"], row["policy"]): statistics.mean(map(figure, row["seeds"]))
                for row in rows
                if row["workload"] == name
            }
            x, y = LEFT + right * (WIDTH + GAP), TOP + down * (HEIGHT + GAP)
            parts.append(_text(x, y - 10, f"{name}: {title}"))
            parts += _bars(x, y, found, policies)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(
    x: float, y: float, found: dict[tuple[float, str], float], policies: list[str]
) -> list[str]:
    low = math.floor(math.log10(max(min(found.values()), 0.01)))
    top = max(low + 1, math.ceil(math.log10(max(found.values()))))
    parts = []
    for power in range(low, top + 1):
        at = y + HEIGHT * (top - power) / (top - low)
        parts.append(f'<path d="M{x} {at:.0f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(_text(x - 6, at + 4, f"{10.0**power:g}", "end"))
    loads = sorted({load for load, _ in found})
    for group, load in enumerate(loads):
        left = x + 14 + group * WIDTH / len(loads)
        for number, policy in enumerate(policies):
            value = max(found[load, policy], 0.01)
            tall = HEIGHT * (math.log10(value) - low) / (top - low)
            spot = left + number * BAR
            parts.append(
                f'<rect x="{spot:.0f}" y="{y + HEIGHT - tall:.1f}" width="{BAR - 3}" '
                f'height="{tall:.1f}" fill="{COLOURS[number]}"/>'
            )
        parts.append(_text(left + 2 * BAR, y + HEIGHT + 18, f"load {load:g}", "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    print(plot(json.loads(Path(sys.argv[1]).read_text())), end="")

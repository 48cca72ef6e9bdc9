"""docs/reference/fault-matrix.md, made from the table and the record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.record import Shown
from tests.faults.table import ROOT, Fault

PAGE: Path = ROOT / "docs/reference/fault-matrix.md"
_HEAD = """\
# What Muster survives

For engineers who want to know how Muster reacts to a fault, and which test shows it. The table
lists every known fault, how the tests cause it, the promise, its bound, and the result of the last
recorded test run. `./dev matrix` makes this page from `tests/faults/faults.toml` and from the
record of that run, `tests/faults/record.json`.

A fault counts as passed if all of its tests passed. The column "measured" is the longest time that
a test saw, in seconds, on a small machine that was busy with other tests, with heartbeats of 1 or
2 s if the bound is in heartbeats. These times are neither promises nor limits of the tests.

"""


def state(fault: Fault, tests: set[str], record: Mapping[str, Shown]) -> str:
    """`passed`, `failed`, `not run`, `skipped: why`, or why no test shows it."""
    if not tests:
        return fault.why
    outcomes = [record[test].outcome if test in record else "not run" for test in sorted(tests)]
    for word in ("failed", "not run", "skipped"):
        found = [outcome for outcome in outcomes if outcome.startswith(word)]
        if found:
            return f"{found[0]} ({len(found)} of {len(outcomes)} tests)"
    return "passed" + (f"; {fault.why}" if fault.why else "")


def page(faults: list[Fault], named: Mapping[int, set[str]], record: Mapping[str, Shown]) -> str:
    """The whole text."""
    states = {row.number: state(row, named[row.number], record) for row in faults}
    passed = sum(text.startswith("passed") for text in states.values())
    lines = [
        f"{passed} of {len(faults)} faults passed.",
        "",
        "| # | fault | how tests cause it | promise | bound | measured, s | result |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in faults:
        figures = [
            record[test].measured_s[str(row.number)]
            for test in named[row.number]
            if test in record and str(row.number) in record[test].measured_s
        ]
        measured = f"{max(figures):.1f}" if figures else ""
        cells = (
            *(str(row.number), row.fault, row.injected, row.promised, row.bound, measured),
            states[row.number],
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    lines += ["", "## Tests by fault", ""]
    for row in faults:
        if named[row.number]:
            tests = ", ".join(f"`{test}`" for test in sorted(named[row.number]))
            lines.append(f"- {row.number}: {tests}")
    return _HEAD + "\n".join(lines) + "\n"

"""docs/reference/fault-matrix.md, made of the table and the record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.record import Shown
from tests.faults.table import ROOT, Fault

PAGE: Path = ROOT / "docs/reference/fault-matrix.md"
_HEAD = """\
# What Muster survives

Every fault that we know of, how the tests make it happen, what is promised, in what bound, and
whether the tests of the last recorded run have shown it. Made by `./dev matrix` of
`tests/faults/faults.toml` and of the record of that run, `tests/faults/record.json`.
A fault is passed if all of its tests passed. Figures are the longest that a test has seen, in
seconds, on a small machine that was busy with other tests, with heartbeats of 1 or 2 s where the
bound is in heartbeats: they are no promise, and nothing is judged by them.

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
        f"{passed} of {len(faults)} faults are shown.",
        "",
        "| # | fault | how it is made | promised | bound | measured, s | shown |",
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
    lines += ["", "## The tests of each", ""]
    for row in faults:
        if named[row.number]:
            tests = ", ".join(f"`{test}`" for test in sorted(named[row.number]))
            lines.append(f"- {row.number}: {tests}")
    return _HEAD + "\n".join(lines) + "\n"

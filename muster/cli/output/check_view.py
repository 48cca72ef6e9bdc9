"""The report of a check for people: findings, worst first, then each network and its worst pair."""

from __future__ import annotations

from typing import Final

import click

from muster.check.parse_output import Transfer
from muster.check.report import CheckReport, FindingSeverity, NetworkFound
from muster.cli.output.format import safe
from muster.cli.output.table import Column, print_table
from muster.cli.output.text_width import paragraph, use_colour

_COLUMNS: Final = (
    Column("NETWORK", name=True),
    Column("PAIRS", right=True, drop=2),
    Column("FAILED", right=True, drop=3),
    Column("MEDIAN GB/s", right=True, drop=1),
    Column("WORST PAIR", elastic=True, wraps=True),
)
_COLOURS: Final = {
    FindingSeverity.FAULT: "red",
    FindingSeverity.WARNING: "yellow",
    FindingSeverity.NOTE: None,
}


def print_report(report: CheckReport) -> None:
    for finding in report.findings:
        word = finding.severity.value
        text = paragraph(safe(finding.text), first=f"{word:<9}")
        colour = _COLOURS[finding.severity]
        if colour is not None and use_colour():
            text = click.style(word, fg=colour) + text[len(word) :]
        print(text)
    for node, why in sorted(report.skipped.items()):
        print(paragraph(safe(f"{node} is left out: {why}"), first=f"{'skipped':<9}"))
    if report.findings or report.skipped:
        print()
    if report.networks:
        print_table(_COLUMNS, [_row(network) for network in report.networks])
        print()
    print(paragraph(_verdict(report)))


def _row(found: NetworkFound) -> list[str]:
    return [
        found.network,
        str(found.pairs),
        str(found.failed),
        "-" if found.median_gb_s is None else f"{found.median_gb_s:.2f}",
        "-" if found.worst is None else _pair(found.worst),
    ]


def _pair(pair: Transfer) -> str:
    how = pair.why if pair.gb_s is None else f"{pair.gb_s:.2f} GB/s"
    return f"{pair.sender} to {pair.receiver}: {how}"


def _verdict(report: CheckReport) -> str:
    count = len(report.nodes)
    checked = f"{count} node{'' if count == 1 else 's'} checked"
    if len(report.skipped):
        checked += f", {len(report.skipped)} left out"
    faults = sum(finding.severity is FindingSeverity.FAULT for finding in report.findings)
    warnings = sum(finding.severity is FindingSeverity.WARNING for finding in report.findings)
    if not faults and not warnings:
        return f"{checked}: they agree and reach each other" if count > 1 else checked
    parts = [
        f"{number} {word}{'' if number == 1 else 's'}"
        for number, word in ((faults, "fault"), (warnings, "warning"))
        if number
    ]
    return f"{checked}: {', '.join(parts)}"

"""`muster check`: run a job that checks that nodes agree with and reach each other."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from muster.check.job import check_job
from muster.check.networks import doubled, networks_of
from muster.check.parse_output import CheckOutput, NodeReport, Transfer
from muster.check.report import (
    CheckReport,
    Finding,
    FindingSeverity,
    between,
    differences,
    fabric,
    named,
    names_and_clocks,
    networks_found,
    worst_first,
)
from muster.cli.client_options import connect, connection_options
from muster.cli.errors import DetachedError, RefusedError
from muster.cli.input.job_ref import NODE
from muster.cli.input.param_types import DURATION
from muster.cli.output.check_view import print_report
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.log_printer import record_bytes
from muster.cli.output.time_limit import note_time_limit
from muster.client import Client, LogQuery
from muster.http.views import AttemptView, JobView, LogTrailer, NodeView
from muster.protocol.outcome import Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import JobState
from muster.protocol.text import count

_BUSY_S: Final = 5.0
"""If a job of free nodes has not started after this time, one of its nodes is no longer free."""
_POLL_S: Final = 0.2
_GONE_MAX: Final = 16
"""Number of successive refusals by nodes after which the check gives up."""
_NAMES: Final = "hosts_"


@click.command("check")
@click.argument("nodes", metavar="[NODE...]", nargs=-1, type=NODE)
@click.option("--wait", "waits", is_flag=True, help="Wait for busy nodes instead of skipping them.")
@click.option(
    "--mib",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    help="MiB to send between each pair of nodes, on each network.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default=3.0,
    metavar="TIME",
    help="Timeout of a connection (default 3s).",
)
@click.option("--python", metavar="PATH", help="Interpreter or environment (default: the nodes').")
@json_option
@connection_options
def command(
    *,
    nodes: tuple[str, ...],
    waits: bool,
    mib: int,
    timeout_s: float,
    python: str | None,
    as_json: bool,
) -> int:
    """Check that nodes have the same versions, resolve each other's names and reach each other.

    Checks all nodes, or those that are named; each pool separately. A job on the free nodes
    compares versions, firmware and limits, and resolves all names in both directions. It also sends
    data between each pair of nodes, in both directions, on every network they share, and verifies
    checksums. Busy nodes are listed and skipped. Problems are printed worst first. Ctrl-C cancels
    the job. Exits with 0 (no problems), 1 (warnings) or 2 (faults), as `muster doctor` does on one
    node.

    \b
    muster check
    muster check gpu-03 gpu-07 --mib 256
    """
    client = connect()
    known = {node.name: node for node in client.nodes().nodes}
    if unknown := [name for name in nodes if name not in known]:
        raise click.UsageError(
            f"there is no node {safe(', '.join(unknown))}; `muster nodes` lists them"
        )
    chosen = [known[name] for name in dict.fromkeys(nodes)] if nodes else list(known.values())
    if not chosen:
        raise RefusedError("no node has joined; run `muster agent` on each")
    check = _Check(client, waits, mib << 20, timeout_s, python)
    check.leave_out(chosen)
    for pool in sorted({node.pool for node in check.ready}):
        check.run(pool, [node for node in check.ready if node.pool == pool])
    report = check.report()
    if as_json:
        print_json(report)
    else:
        print_report(report)
    return report.exit_code


@dataclass
class _Check:
    """The jobs of one call and their findings so far."""

    client: Client
    waits: bool
    size: int
    timeout_s: float
    python: str | None
    ready: list[NodeView] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    reports: dict[str, NodeReport] = field(default_factory=dict)
    pairs: list[Transfer] = field(default_factory=list)

    def leave_out(self, chosen: Sequence[NodeView]) -> None:
        """Skip nodes that cannot be checked now, and record faults that need no job to find."""
        for node in chosen:
            if node.link != "connected" and node.drain is not None:
                self.skipped[node.name] = node.state.text
            elif node.link != "connected":
                text = f"{node.name} is not connected: {node.state.text}"
                self._find(FindingSeverity.FAULT, "link", (node.name,), text)
            elif node.state.code in ("refuses_jobs", "disk"):
                self._find(
                    FindingSeverity.FAULT, "refused", (node.name,), f"{node.name} {node.state.text}"
                )
            elif node.state.code in ("free", "no_torch") or self.waits:  # a check needs no torch
                self.ready.append(node)
            else:
                self.skipped[node.name] = node.state.text
        for address, owners in doubled(chosen).items():
            text = f"{named(owners)} both have the address {address}"
            self._find(FindingSeverity.FAULT, "address", tuple(owners), text)

    def run(self, pool: str, nodes: list[NodeView]) -> None:
        """Check the nodes of one pool. After a refusal, retry without the node that refused."""
        for _ in range(_GONE_MAX):
            if not nodes:
                return
            gone = self._try(pool, nodes)
            if not gone:
                return
            nodes = [node for node in nodes if node.name not in gone]
        text = f"pool {pool}: {_GONE_MAX} jobs have failed one after the other, so the check ends"
        self._find(FindingSeverity.FAULT, "refused", (), text)

    def report(self) -> CheckReport:
        facts = {node: its.facts for node, its in sorted(self.reports.items())}
        versions = {node.name: {"muster": node.version} for node in self.ready}
        compared = {node: {**versions.get(node, {}), **mine} for node, mine in facts.items()}
        found = [
            *self.findings,
            *between(self.pairs),
            *names_and_clocks(dict(sorted(self.reports.items()))),
            *differences(compared),
        ]
        if not self.reports and not found:
            found.append(
                Finding(FindingSeverity.WARNING, "skipped", (), "no node could be checked")
            )
        return CheckReport(
            tuple(compared),
            self.skipped,
            tuple(self.jobs),
            worst_first(found),
            networks_found(self.pairs),
            compared,
            tuple(self.pairs),
        )

    def _find(
        self, severity: FindingSeverity, kind: str, nodes: tuple[str, ...], text: str
    ) -> None:
        self.findings.append(Finding(severity, kind, nodes, text))

    def _try(self, pool: str, nodes: Sequence[NodeView]) -> set[str]:
        """Run one job. Returns the nodes to leave out of the next try; empty if the check is
        done."""
        job = check_job(
            [node.name for node in nodes],
            networks_of(nodes),
            size=self.size,
            timeout_s=self.timeout_s,
            key=secrets.token_hex(8),
            pool=pool,
            python=self.python,
        )
        key = os.urandom(16).hex()
        number: int | None = None
        try:
            summary = self.client.submit(job, key)
            number = summary.id
            self.jobs.append(number)
            note(f"job {number} checks {count(len(nodes), 'node')}; Ctrl-C cancels it")
            note_time_limit(summary, "the default of every check")
            return self._followed(number)
        except KeyboardInterrupt:
            # Because the job may have been submitted, submit again: the same key returns the same
            # job.
            number = self.client.submit(job, key).id if number is None else number
            self.client.cancel(number, reason="Ctrl-C in muster check")
            raise DetachedError(f"interrupted; job {number} was cancelled") from None

    def _followed(self, job: int) -> set[str]:
        if taken := self._not_started(job):
            return taken
        output = CheckOutput()
        progress = _progress()
        rest = b""
        query = LogQuery(follow=True, rank=0, stream="stdout")
        for entry in self.client.logs(job, query):
            if isinstance(entry, LogTrailer) or entry.gap is not None:
                continue
            *lines, rest = (rest + record_bytes(entry)).split(b"\n")
            for line in lines:
                output.take(line.decode(errors="replace"))
            progress(output.step)
        progress("")
        ended = self.client.wait(job)
        view = self.client.job(job)
        if output.end and not ended.exit_code:
            self.reports |= output.nodes
            self.pairs += output.pairs
            for attempt in view.attempts[-1:]:
                self._warnings(attempt)
            self.findings += fabric(self.client.fabric(job).plan)
            return set()
        return self._failed(view, output)

    def _not_started(self, job: int) -> set[str]:
        """Wait until the job starts. If it takes too long, cancel the job and return the nodes that
        prevent it from starting."""
        until = time.monotonic() + _BUSY_S
        said = False
        while True:
            view = self.client.job(job)
            if view.state is not JobState.QUEUED:
                return set()
            if time.monotonic() > until:
                if not self.waits:
                    return self._give_up(job, view)
                if not said:
                    note(f"job {job} waits: {safe(view.reason.text)}")
                    said = True
            time.sleep(_POLL_S)

    def _give_up(self, job: int, view: JobView) -> set[str]:
        verdicts = self.client.explain(job).nodes
        wanted = set(view.spec["placement"]["include"])
        taken = {v.node: v.reason.text for v in verdicts if not v.can and v.node in wanted}
        self.client.cancel(job, reason="its nodes are not free")
        if not taken:
            text = f"no job can start on these nodes together: {view.reason.text}"
            self._find(FindingSeverity.FAULT, "refused", tuple(sorted(wanted)), text)
            return wanted
        self.skipped |= taken
        return set(taken)

    def _failed(self, view: JobView, output: CheckOutput) -> set[str]:
        """Record why a job failed. Returns the node to leave out of the next try."""
        attempt = view.attempts[-1] if view.attempts else None
        cause = attempt.cause if attempt is not None else None
        if cause is None or cause.node is None or cause.outcome is Outcome.CANCELLED:
            raise RefusedError(
                f"job {view.id} {view.state.value}: {safe(view.reason.text)}; "
                f"see muster show {view.id}"
            )
        refusal = cause.refusal or ""
        kind = "names" if refusal.startswith(_NAMES) else "refused"
        kind = "tcp" if refusal == RefusalCode.UNREACHABLE else kind
        self._find(FindingSeverity.FAULT, kind, (cause.node,), cause.text)
        if output.nodes and not refusal:
            # Reports made before the failure remain valid, because the job had started.
            self.reports |= output.nodes
        note(f"{safe(cause.text)}; retrying without {safe(cause.node)}")
        return {cause.node}

    def _warnings(self, attempt: AttemptView) -> None:
        for task in attempt.tasks:
            for text in task.warnings:
                self._find(FindingSeverity.WARNING, "names", (task.node,), f"{task.node}: {text}")


def _progress() -> Callable[[str], None]:
    """Return a function that shows a step on the terminal's last line; "" clears it."""
    if not sys.stderr.isatty():
        return lambda _: None

    def show(step: str) -> None:
        text = f"muster: round {step}" if step else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return show

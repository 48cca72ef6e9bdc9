"""`muster bench`: measure the network of a gang with an ordinary job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from muster.bench.job import DEFAULT_RDMA, allreduce_job
from muster.bench.results import Row, Run, RunInfo, pass_line, rates_of, read_line
from muster.bench.sizes import SizesError, read_sizes
from muster.cli.client_options import connect, connection_options
from muster.cli.errors import EXIT_WARNED, DetachedError
from muster.cli.input.job_input import with_variables
from muster.cli.jobs.wait import ending, exit_code
from muster.cli.output.bench_view import print_comparison, print_plot, print_run, row_printer
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import print_json
from muster.cli.output.log_printer import record_bytes
from muster.cli.output.time_limit import note_time_limit
from muster.client import Client, LogQuery
from muster.http.views import JobSummary, LogTrailer
from muster.protocol.observations.traffic import Carrier
from muster.protocol.states import JobState
from muster.spec.field_readers import MAX_NODES

NO_PROOF: Final = "unknown"
_OFF: Final = "off"
_LOOK_S: Final = 2.0
_ROUNDS_MAX: Final = 1_000_000


class Sizes(click.ParamType["tuple[int, ...]"]):
    """A parameter such as `1M..1G`, converted to sizes in bytes, ascending."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return read_sizes(str(value))
        except SizesError as error:
            self.fail(str(error), param, ctx)


class NodeNames(click.ParamType["tuple[str, ...]"]):
    """Node names, separated by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(word.strip() for word in str(value).split(",")))
        if not all(names):
            self.fail(f"{value!r} has an empty node name between two commas", param, ctx)
        return names


@click.group("bench")
def command() -> None:
    """Measure the performance that nodes give a job. Each benchmark is an ordinary job."""


@command.command("allreduce", short_help="Measure all-reduce between nodes, by message size.")
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), metavar="N", help="Number of nodes (default 2)."
)
@click.option(
    "--nodes-named", "named", type=NodeNames(), metavar="A,B", help="Use exactly these nodes."
)
@click.option(
    "--sizes",
    type=Sizes(),
    default="1M..1G",
    show_default=True,
    help="Message sizes: 1M..1G, or 1M,1G.",
)
@click.option("--compare-tcp", is_flag=True, help="Run again without RDMA, and print both results.")
@click.option(
    "--rdma",
    type=click.Choice(["required", "preferred", "off"]),
    default=DEFAULT_RDMA,
    show_default=True,
    help="As in a job file.",
)
@click.option(
    "--iters",
    type=click.IntRange(1, _ROUNDS_MAX),
    default=20,
    show_default=True,
    help="Iterations.",
)
@click.option(
    "--warmups",
    type=click.IntRange(1, _ROUNDS_MAX),
    default=5,
    show_default=True,
    help="Warm-up iterations.",
)
@click.option("--pool", metavar="POOL", help="The pool of nodes.")
@click.option("--python", metavar="PATH", help="Interpreter or environment with torch.")
@click.option(
    "-e", "--env", "env", multiple=True, metavar="K[=V]", help="Set a variable (NCCL_ALGO=Ring)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@connection_options
def allreduce(
    *,
    nodes: int | None,
    named: tuple[str, ...] | None,
    sizes: tuple[int, ...],
    compare_tcp: bool,
    rdma: str,
    iters: int,
    warmups: int,
    pool: str | None,
    python: str | None,
    env: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure all-reduce bandwidth between nodes by message size, as nccl-tests does (NCCL on GPUs,
    otherwise gloo).

    The benchmark waits in the queue like any other job. Ctrl-C cancels it. Compare BUSBW with the
    hardware: with RDMA, the largest size passes at 80% of the combined bandwidth of a node's HCAs.
    Sizes that take long get fewer iterations than --iters. The results are in the job's logs, too.

    Exits with 0, with 1 if the result is below the pass line or a sum was wrong, or as `muster
    wait` does.

    \b
    muster bench allreduce --nodes 4 --compare-tcp
    muster bench allreduce --nodes-named gpu-03,gpu-07 --sizes 64M,1G
    """
    if named and nodes not in (None, len(named)):
        raise click.UsageError(f"--nodes {nodes} and --nodes-named, which names {len(named)}")
    if compare_tcp and rdma == _OFF:
        raise click.UsageError("--compare-tcp runs it with RDMA too, so not --rdma off")
    client = connect()
    count = nodes or len(named or ()) or 2
    bench = _Bench(client, as_json=as_json)

    def job(how: str, on: tuple[str, ...]) -> Mapping[str, Any]:
        made = allreduce_job(
            count,
            sizes,
            rdma=how,
            iterations=iters,
            warmups=warmups,
            named=on,
            pool=pool,
            python=python,
        )
        return with_variables(made, env, os.environ)

    runs: list[Run] = []
    code = 0
    for how in (rdma, _OFF) if compare_tcp else (rdma,):
        if runs and not as_json:
            print()
        run, code = bench.run(job(how, runs[0].nodes if runs else named or ()), how)
        runs.append(run)
        if code:
            break
    return bench.finish(runs, code)


@dataclass
class _Bench:
    """The runs of one call. Prints each run as it proceeds; Ctrl-C cancels its job."""

    client: Client
    as_json: bool

    def run(self, job: Mapping[str, Any], rdma: str) -> tuple[Run, int]:
        """Run one job to its end. Returns its measurements and its exit code."""
        key = os.urandom(16).hex()
        try:
            summary = self.client.submit(job, key)
        except KeyboardInterrupt:
            # Because the job may have been submitted, submit again: the same key returns the same
            # job.
            raise self._cancelled(self.client.submit(job, key).id) from None
        try:
            return self._followed(summary, rdma)
        except KeyboardInterrupt:
            raise self._cancelled(summary.id) from None

    def finish(self, runs: list[Run], code: int) -> int:
        """Print the summary of all runs and return the exit code."""
        if self.as_json:
            print_json({"runs": runs})
        elif len(runs) > 1 and not code:
            print_comparison(runs[0], runs[1])
        elif any(run.rows for run in runs):
            print_plot(runs)
        if code:
            return code
        good = all(run.line.passed is not False and not run.wrong for run in runs)
        return 0 if good else EXIT_WARNED

    def _followed(self, summary: JobSummary, rdma: str) -> tuple[Run, int]:
        job = summary.id
        note(f"submitted job {job} ({safe(summary.name)}), rdma: {rdma}; Ctrl-C cancels it")
        note_time_limit(summary, "the default of every benchmark")
        self._say_why_it_waits(job)
        about, rows = self._read(job)
        ended = self.client.wait(job)
        view = self.client.job(job)
        nodes = tuple(task.node for attempt in view.attempts[-1:] for task in attempt.tasks)
        fabric = self.client.fabric(job)
        planned = "" if fabric.plan is None else fabric.plan.text
        verdict, transport = Carrier.UNKNOWN, NO_PROOF
        if fabric.proof is not None:
            verdict, transport = fabric.proof.verdict, fabric.proof.text
        if about is not None and about.backend == "gloo" and about.nodes > 1:
            verdict, transport = Carrier.TCP, "TCP: gloo supports nothing else"
        line = pass_line(about, rows, rates_of(fabric.plan), tcp=verdict is Carrier.TCP)
        run = Run(job, rdma, nodes, about, tuple(rows), planned, verdict, transport, line)
        code = exit_code(ended)
        if code:
            note(f"{ending(ended)}\n  muster show {job}, and muster logs {job}, show more")
        if not self.as_json and rows:
            print_run(run)
        return run, code

    def _say_why_it_waits(self, job: int) -> None:
        if self.client.wait(job, 0.0).state is JobState.QUEUED:
            view = self.client.wait(job, _LOOK_S)
            if view.state is JobState.QUEUED:
                note(f"job {job} waits: {safe(view.reason.text)}")

    def _read(self, job: int) -> tuple[RunInfo | None, list[Row]]:
        """Read the last attempt's results, printing them as they arrive."""
        about: RunInfo | None = None
        rows: list[Row] = []
        attempt, rest = 0, b""
        show = row_printer(silent=self.as_json)
        for entry in self.client.logs(job, LogQuery(follow=True, rank=0, stream="stdout")):
            if isinstance(entry, LogTrailer) or entry.gap is not None:
                continue
            if entry.attempt != attempt:
                if rows:
                    note(f"attempt {entry.attempt} starts again")
                attempt, rest, rows, about = entry.attempt, b"", [], None
            *lines, rest = (rest + record_bytes(entry)).split(b"\n")
            for text in lines:
                found = read_line(text.decode(errors="replace"))
                if isinstance(found, RunInfo):
                    about = found
                    show(found)
                elif isinstance(found, Row):
                    rows.append(found)
                    show(found)
        return about, rows

    def _cancelled(self, job: int) -> DetachedError:
        self.client.cancel(job, reason="Ctrl-C in muster bench")
        return DetachedError(f"interrupted; job {job} was cancelled")

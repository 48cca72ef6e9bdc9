"""`muster submit`: check a job, submit it, and optionally wait for it or follow it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.errors import DetachedError
from muster.cli.input.job_input import (
    JobInput,
    Typed,
    looks_like_a_file,
    meant_for_a_shell,
    read_job,
)
from muster.cli.input.param_types import IDEMPOTENCY_KEY
from muster.cli.jobs.wait import print_and_wait
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import print_json
from muster.cli.output.time_limit import note_time_limit
from muster.client import ApiError, Client, ClientError
from muster.http.views import JobSummary
from muster.protocol.outcome import EXIT_NEVER_STARTED
from muster.spec.checks.advice import advice
from muster.spec.serialize import to_mapping

# Statuses that concern the job, not the coordinator or the connection.
_REFUSED: Final = frozenset({400, 413, 422})


# Options of ours that programs rarely have; `--config` and `--name` are common.
_OURS: Final = frozenset(
    {
        "--dry-run",
        "--follow",
        "--from-sbatch",
        "--gpus",
        "--idempotency-key",
        "--list-files",
        "--nccl-debug",
        "--nodes",
        "--nproc-per-node",
        "--pool",
        "--priority",
        "--set",
        "--time-limit",
        "--wait",
    }
)

# Options whose name is not the key of the job file.
_PATHS: Final = {"gpus": "resources.gpu"}


class _Submit(click.Command):
    """Refuses Muster's options after a command without `--`. They would go to the command, so a
    misplaced `--dry-run` would start the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        rest = super().parse_args(ctx, args)
        command: tuple[str, ...] = ctx.params.get("command") or ()
        behind = len(typed) - len(command)
        if not ctx.resilient_parsing and typed[behind - 1 : behind] != ["--"]:
            for word in command:
                if (name := word.partition("=")[0]) in _OURS:
                    first = safe(command[0])
                    raise click.UsageError(
                        f"{name} follows the command, which would receive it: write it before "
                        f"{first}, or, if that is meant, -- before {first}",
                        ctx,
                    )
        return rest


@click.command("submit", cls=_Submit, context_settings={"allow_interspersed_args": False})
@click.option("-f", "--file", metavar="FILE", help="The job file; - reads standard input.")
@click.option(
    "--from-sbatch",
    "sbatch",
    metavar="FILE",
    help="A Slurm batch script instead; ignored parts are reported.",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the job.")
@click.option(
    "-e",
    "--env",
    "env",
    multiple=True,
    metavar="K[=V]",
    help="Set a variable, or pass yours through.",
)
@click.option("--name", metavar="NAME", help="Name of the job.")
@click.option(
    "-N",
    "--nodes",
    metavar="N",
    envvar="MUSTER_SUBMIT_NODES",
    show_envvar=True,
    help="Number of nodes.",
)
@click.option(
    "-g",
    "--gpus",
    metavar="[MODEL:]N",
    envvar="MUSTER_SUBMIT_GPUS",
    show_envvar=True,
    help="GPUs per node.",
)
@click.option(
    "-i",
    "--image",
    metavar="IMAGE",
    help="Container image; this release refuses it.",
)
@click.option(
    "--nproc-per-node",
    metavar="N",
    envvar="MUSTER_SUBMIT_NPROC_PER_NODE",
    show_envvar=True,
    help="Number of ranks per node.",
)
@click.option(
    "--time-limit",
    metavar="TIME",
    envvar="MUSTER_SUBMIT_TIME_LIMIT",
    show_envvar=True,
    help="Time limit (24h, 90m).",
)
@click.option(
    "--priority",
    metavar="0-100",
    envvar="MUSTER_SUBMIT_PRIORITY",
    show_envvar=True,
    help="Priority; higher starts first.",
)
@click.option(
    "--pool",
    metavar="POOL",
    envvar="MUSTER_SUBMIT_POOL",
    show_envvar=True,
    help="The pool of nodes.",
)
@click.option(
    "--nccl-debug",
    is_flag=True,
    help="Set NCCL_DEBUG to INFO, to log which network NCCL chose, and why.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait until it ends, and exit with its code.")
@click.option("--follow", is_flag=True, help="Like --wait, and print its logs.")
@click.option(
    "--idempotency-key",
    "key",
    type=IDEMPOTENCY_KEY,
    metavar="KEY",
    help="A repeated submit with the same key returns the same job.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only check the job; print it with its defaults, and whether it fits the nodes.",
)
@click.option(
    "--list-files",
    "lists",
    is_flag=True,
    help="Only list the files that would travel with the job.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the job as JSON instead of the id; with --wait, after its end.",
)
@connection_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    *,
    file: str | None,
    sbatch: str | None,
    sets: tuple[str, ...],
    env: tuple[str, ...],
    nccl_debug: bool,
    waits: bool,
    follow: bool,
    key: str | None,
    dry_run: bool,
    lists: bool,
    as_json: bool,
    command: tuple[str, ...],
    **options: str | None,
) -> int:
    """Submit a job; prints its id, alone, on standard output.

    \b
    muster submit -f job.yaml --set nodes=4
    muster submit --nodes 2 -- python train.py --lr 1e-5
    muster submit --from-sbatch job.sh --dry-run
    id=$(muster submit -f job.yaml)
    """
    _check_usage(file, sbatch, command)
    if as_json and follow:
        raise click.UsageError("--follow prints the logs on stdout, which --json needs alone")
    given = {_PATHS.get(name, name): text for name, text in options.items() if text is not None}
    job = read_job(Typed(file, command, sets, env, given, sbatch, nccl_debug), os.environ)
    for said in job.notes:
        note(safe(said))
    if lists:
        return _list_files(job)
    if job.spec.git is not None:
        from muster.cli.input.git_code import with_commit

        job = with_commit(job)
    if dry_run:
        return _check_only(job, as_json=as_json)
    for said in advice(job.spec):
        note(safe(said))
    client = connect()
    if job.code is not None:
        from muster.cli.input.code import ship

        job = ship(client, job, job.code)
    summary = _hand_over(client, job, key)
    # Note this first: the job is submitted even if the following output cannot be printed.
    note(f"submitted job {summary.id} ({safe(summary.name)}), {summary.state.value}")
    if job.spec.time_limit_s is None:
        pool = safe(summary.pool)
        note_time_limit(summary, f"the default of pool {pool} (another: --time-limit)")
    return print_and_wait(client, summary, waits=waits, follow=follow, as_json=as_json)


def _list_files(job: JobInput) -> int:
    if job.code is None:
        what = "fetched by the nodes" if job.spec.git else "a folder of the nodes, or none"
        note(f"no files travel with this job: its `workdir` is {what}")
        return 0
    from muster.cli.input.code import listed, read_code

    print(listed(read_code(job, job.code)))
    return 0


def _check_usage(file: str | None, sbatch: str | None, command: tuple[str, ...]) -> None:
    if file is not None and sbatch is not None:
        raise click.UsageError("-f and --from-sbatch exclude each other: give one of them")
    if (meant := meant_for_a_shell(command)) is not None:
        raise click.UsageError(
            f"the command is one word, and no file of that name is here; write it as: -- {meant}"
        )
    if file is not None or sbatch is not None:
        return
    if not command:
        raise click.UsageError("there is no job: give -f FILE, or a command after --")
    if looks_like_a_file(command):
        raise click.UsageError(f"{command[0]} is a job file: muster submit -f {command[0]}")
    if command[0].startswith("-") and command[0] != "-m":
        raise click.UsageError(f"the command begins with an option: {command[0]}")


def _check_only(job: JobInput, *, as_json: bool) -> int:
    """Check the job here and, if it answers, by the coordinator; print it with its defaults."""
    sent = job
    if job.code is not None:
        from muster.cli.input.code import is_sent, read_code, with_code

        try:
            strict = is_sent(connect(), job)
        except ClientError:
            strict = not job.by_default
        sent = with_code(job, read_code(job, job.code, strict=strict))
    try:
        # The pool's own `workdir` is preferred to the folder that a job does not name.
        found = connect().validate((job if job.by_default else sent).mapping)
    except ClientError as error:
        if isinstance(error, ApiError) and error.status in _REFUSED:
            raise
        _print_job(to_mapping(sent.spec), as_json=as_json)
        for said in advice(job.spec):
            note(safe(said))
        note(f"checked here only, not against the nodes: {safe(str(error))}")
        return 0
    code = {key: sent.mapping[key] for key in ("workdir",) if key in sent.mapping}
    _print_job({**code, **found.spec}, as_json=as_json)
    if found.pool_defaults:
        keys = ", ".join(map(safe, found.pool_defaults))
        note(f"of pool {safe(str(found.spec.get('pool', '')))}, by its defaults: {keys}")
    for warning in found.warnings:
        note(safe(warning))
    if not found.fits:
        note(f"it does not fit the known nodes: {safe(found.unfit or 'no reason given')}")
        return EXIT_NEVER_STARTED
    note("it fits the known nodes")
    return 0


def _hand_over(client: Client, job: JobInput, key: str | None) -> JobSummary:
    try:
        return client.submit(job.mapping, key or os.urandom(16).hex())
    except KeyboardInterrupt:
        raise DetachedError(
            "interrupted; the job may have been submitted: muster ps -n 5"
        ) from None


def _print_job(mapping: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(mapping)
        return
    from muster.cli.output.job_yaml import job_text

    print(job_text(mapping, sys.stdout.encoding), end="")

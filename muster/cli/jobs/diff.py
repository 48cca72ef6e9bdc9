"""`muster diff`: show what differs between two jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.output.format import length, note
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.http.views import EnvironmentView, JobView

# Variables that differ between any two runs, so they are not compared.
_OF_THE_RUN: Final = ("MUSTER_", "MASTER_", "PET_MASTER_")
_NOTHING: Final = "-"
_ITS_FOLDER: Final = "/TASK/"


class JobDifference(msgspec.Struct, frozen=True):
    """`what` is a key of the job file or of the run, joined by dots; "" means that the value is
    missing."""

    what: str
    first: str
    second: str


class Differences(msgspec.Struct, frozen=True):
    """The output of `muster diff --json`."""

    jobs: tuple[int, int]
    differences: tuple[JobDifference, ...]


@click.command("diff")
@click.argument("first", metavar="JOB", type=JOB)
@click.argument("second", metavar="JOB", type=JOB)
@json_option
@connection_options
def command(*, first: str, second: str, as_json: bool) -> None:
    """Show what differs between two jobs: their job files with all defaults, the environment of the
    launcher's processes, and how and where they ran. Secrets are not compared.

    \b
    muster diff 41 42         exit code 0, whether they differ or not
    """
    client = connect()
    numbers = find_job(client, first), find_job(client, second)
    views = [client.job(number) for number in numbers]
    specs = [dict(_flat(view.spec)) for view in views]
    found = (
        *_differences(*specs),
        *_of_environments([client.environment(number) for number in numbers], specs),
        *_differences(*map(_run, views)),
    )
    if as_json:
        print_json(Differences(numbers, found))
        return
    if not found:
        note(f"jobs {numbers[0]} and {numbers[1]} do not differ")
        return
    columns = (
        Column("WHAT"),
        Column(f"JOB {numbers[0]}", elastic=True, wraps=True),
        Column(f"JOB {numbers[1]}", elastic=True, wraps=True),
    )
    print_table(columns, [[d.what, d.first or _NOTHING, d.second or _NOTHING] for d in found])


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[JobDifference]:
    for what in dict.fromkeys([*first, *second]):
        here, there = first.get(what, ""), second.get(what, "")
        if here != there:
            yield JobDifference(what, here, there)


def _of_environments(
    views: Sequence[EnvironmentView], specs: Sequence[Mapping[str, str]]
) -> Iterator[JobDifference]:
    """Compare environments only if both jobs had one; otherwise every variable would differ."""
    if all(view.nodes and view.nodes[0].env for view in views):
        pairs = zip(views, specs, strict=True)
        yield from _differences(*(_environment(view, spec) for view, spec in pairs))


def _flat(tree: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{section}{name}.")
        else:
            text = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{section}{name}", text


def _environment(view: EnvironmentView, spec: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of node rank 0, without variables from the job file. Replaces the path
    of the task's folder, which differs in every run."""
    env = view.nodes[0].env if view.nodes else None
    folder = f"/{view.job}.{view.attempt}.0/"
    return {
        f"env.{name}": value.replace(folder, _ITS_FOLDER)
        for name, value in sorted((env or {}).items())
        if not name.startswith(_OF_THE_RUN) and f"env.{name}" not in spec
    }


def _run(view: JobView) -> dict[str, str]:
    last = view.attempts[-1] if view.attempts else None
    began, ended = view.started_at, view.run_ended_at
    return {
        "state": view.state.value,
        "exit code": "" if view.exit_code is None else str(view.exit_code),
        "ran": length(ended - began) if began is not None and ended is not None else "",
        "attempts": str(len(view.attempts)),
        "nodes of the last": "" if last is None else ", ".join(task.node for task in last.tasks),
        "network": "" if last is None else last.network or "",
    }

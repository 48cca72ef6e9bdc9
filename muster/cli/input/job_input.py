"""From what a user typed after `muster submit` to a checked job, before anything is sent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
from msgspec.structs import replace

from muster.cli.output.format import safe
from muster.spec.errors import SpecError
from muster.spec.from_command import from_command
from muster.spec.model import Argv, JobSpec, Launcher
from muster.spec.overrides import override_document
from muster.spec.parse import parse_document
from muster.spec.slurm.shell_words import suffix
from muster.spec.yaml.loader import MAX_BYTES, Document, read_yaml

STDIN: Final = "-"
_OF_A_SHELL: Final = ";&|<>$`\"'\n"
_NCCL_DEBUG: Final = "NCCL_DEBUG"
# The level that names networks and transports, and the one above it.
_NCCL_TALKATIVE: Final = ("INFO", "TRACE")


class Typed(NamedTuple):
    """What the command line holds. `options` maps paths of the job file to their text; `sbatch` is
    a Slurm script in place of the job file.
    """

    file: str | None
    command: tuple[str, ...]
    sets: tuple[str, ...]
    env: tuple[str, ...]
    options: Mapping[str, str]
    sbatch: str | None = None
    nccl_debug: bool = False


class Job(NamedTuple):
    """A job to submit: `mapping` is what travels, `notes` what the user should know of it.

    What was not typed stays out of `mapping`, so that defaults remain the coordinator's to choose.
    """

    spec: JobSpec
    mapping: dict[str, object]
    notes: tuple[str, ...]


def read_job(typed: Typed, environ: Mapping[str, str]) -> Job:
    """Read, override and check. Raises SpecError with every problem, UsageError for the file."""
    notes: list[str] = []
    try:
        return _read(typed, environ, notes)
    except SpecError as refused:
        # Of a batch script, what is missing may be the reason.
        raise SpecError(refused.problems, notes if typed.sbatch else ()) from None


def _read(typed: Typed, environ: Mapping[str, str], notes: list[str]) -> Job:
    document = _document(typed, notes)
    tree, document = override_document(document, typed.sets, typed.env, options=typed.options)
    if typed.command:
        tree, document = _with_command(tree, document, typed, notes)
    if typed.sbatch is not None:
        tree, document = _in_this_folder(tree, document, notes)
    spec = parse_document(document, environ)
    if typed.nccl_debug:
        silent = spec.env.get(_NCCL_DEBUG, _NCCL_TALKATIVE[0]).upper() not in _NCCL_TALKATIVE
        env = [f"{_NCCL_DEBUG}={_NCCL_TALKATIVE[0]}"] if silent else []
        tree, document = override_document(document, ["nccl_debug=true"], env)
        spec = parse_document(document, environ)
    notes += _script_not_here(spec)
    return Job(spec, _filled(tree, spec), tuple(notes))


def _script_not_here(spec: JobSpec) -> list[str]:
    """A word on a script that the job's folder lacks, where that is the one we are in: a typing
    mistake is told before the job has waited for its nodes. What `setup` brings nobody knows."""
    if spec.setup is not None or spec.workdir is None or not isinstance(spec.run, Argv):
        return []
    script = spec.run.argv[0]
    # Without a launcher it may be a program on the nodes' PATH.
    if spec.launcher is Launcher.NONE or suffix(script) != ".py" or script.startswith("/"):
        return []
    try:
        here = str(Path.cwd())
    except OSError:  # it was removed under us
        return []
    if here != spec.workdir or os.path.exists(script):
        return []
    return [f"{safe(script)} is not in this folder; the nodes need it in theirs"]


def with_variables(
    job: Mapping[str, object], env: tuple[str, ...], environ: Mapping[str, str]
) -> dict[str, object]:
    """A job of ours with the variables that a user typed, checked. Raises SpecError."""
    tree, document = override_document(Document(dict(job)), (), env)
    return _filled(tree, parse_document(document, environ))


def _document(typed: Typed, notes: list[str]) -> Document:
    """What the job begins as: a job file, a batch script, or nothing."""
    if typed.sbatch is not None:
        from muster.spec.slurm.sbatch import from_sbatch

        made = from_sbatch(_text(typed.sbatch))
        notes += made.notes
        return Document(made.mapping)
    return Document({}) if typed.file is None else read_yaml(_text(typed.file))


def _filled(tree: dict[str, object], spec: JobSpec) -> dict[str, object]:
    """`tree` with the variables that are taken from the caller: the coordinator cannot see our
    environment."""
    filled = {**tree, "env": dict(spec.env)} if "env" in tree else dict(tree)
    roles = tree.get("roles")
    if isinstance(roles, dict):
        own = {"launcher": spec.roles.launcher.env, "worker": spec.roles.worker.env}
        filled["roles"] = {
            name: {**role, "env": own[name]} if isinstance(role, dict) and "env" in role else role
            for name, role in roles.items()
        }
    return filled


def _with_command(
    tree: dict[str, object], document: Document, typed: Typed, notes: list[str]
) -> tuple[dict[str, object], Document]:
    if "run" in tree:
        where = typed.sbatch if typed.file is None else typed.file
        notes.append(f"the command after -- takes the place of `run` in {where}")
    launcher = tree.get("launcher")
    made = from_command(typed.command, launcher if isinstance(launcher, str) else None)
    if made.note:
        notes.append(made.note)
    changed = {**tree, **made.mapping}
    gone = set(made.mapping)
    lines = {path: line for path, line in document.lines.items() if path not in gone}
    document = replace(document, tree=changed, lines=lines)
    return _in_this_folder(changed, document, notes) if typed.file is None else (changed, document)


def _in_this_folder(
    tree: dict[str, object], document: Document, notes: list[str]
) -> tuple[dict[str, object], Document]:
    """What is typed here, and says no folder, runs in the folder of the same name."""
    if "workdir" in tree:
        return tree, document
    here = str(Path.cwd())
    notes.append(f"workdir: {here} (this folder, which the nodes must have too)")
    changed = {**tree, "workdir": here}
    return changed, replace(document, tree=changed)


def _text(file: str) -> str:
    try:
        if file == STDIN:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        return raw.decode()
    except OSError as error:
        said = f"the job file {safe(file)} cannot be read: {error.strerror}"
        raise click.UsageError(said) from error
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"the job file {safe(file)} is not UTF-8 (byte {error.start}): save it as UTF-8"
        ) from error


def looks_like_a_file(command: tuple[str, ...]) -> bool:
    """Whether `muster submit job.yaml` was meant to be `muster submit -f job.yaml`."""
    return (
        len(command) == 1 and command[0].endswith((".yaml", ".yml")) and os.path.exists(command[0])
    )


def meant_for_a_shell(command: tuple[str, ...]) -> str | None:
    """What was meant by a whole line in quotes, which no program is called; None for all else."""
    if len(command) != 1 or os.path.exists(command[0]):
        return None
    line = command[0].strip()
    if any(char in line for char in _OF_A_SHELL) or "=" in line.partition(" ")[0]:
        return f"bash -c {shlex.quote(line)}"
    return line if any(char.isspace() for char in line) else None

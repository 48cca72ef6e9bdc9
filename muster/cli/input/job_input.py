"""Build and check a job from the arguments of `muster submit`, before anything is sent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
from msgspec.structs import replace

from muster.cli.input.unasked import may_travel_unasked
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
# The log level that names networks and transports, and the one above it.
_NCCL_TALKATIVE: Final = ("INFO", "TRACE")


class Typed(NamedTuple):
    """The arguments of the command line. `options` maps paths of the job file to their text;
    `sbatch` is a Slurm script that replaces the job file."""

    file: str | None
    command: tuple[str, ...]
    sets: tuple[str, ...]
    env: tuple[str, ...]
    options: Mapping[str, str]
    sbatch: str | None = None
    nccl_debug: bool = False


class JobInput(NamedTuple):
    """A job to submit: `mapping` is sent to the coordinator, `notes` are for the user.

    Values that were not given stay out of `mapping`, so that the coordinator chooses the defaults.
    `code` is the folder whose content travels with the job; then `mapping` and `spec` lack it until
    `with_bundle` adds its hash. `by_default`: the job does not name that folder.
    """

    spec: JobSpec
    mapping: dict[str, object]
    notes: tuple[str, ...]
    code: Path | None = None
    by_default: bool = False

    def with_bundle(self, sha256: str) -> JobInput:
        """Return the job with the hash of its code."""
        mapping = {**self.mapping, "workdir": {"bundle": sha256}}
        spec = replace(self.spec, workdir=None, bundle=sha256)
        return self._replace(spec=spec, mapping=mapping)


def read_job(typed: Typed, environ: Mapping[str, str]) -> JobInput:
    """Read the job, apply overrides and check it. Raises SpecError with every problem, and
    UsageError for the file."""
    notes: list[str] = []
    try:
        return _read(typed, environ, notes)
    except SpecError as refused:
        # Because parts of a batch script that were not taken over may explain the error, add the
        # notes.
        raise SpecError(refused.problems, notes if typed.sbatch else ()) from None


def _read(typed: Typed, environ: Mapping[str, str], notes: list[str]) -> JobInput:
    document = _document(typed, notes)
    tree, document = override_document(document, typed.sets, typed.env, options=typed.options)
    if typed.command:
        tree, document = _with_command(tree, document, typed, notes)
    spec = parse_document(document, environ)
    if typed.nccl_debug:
        silent = spec.env.get(_NCCL_DEBUG, _NCCL_TALKATIVE[0]).upper() not in _NCCL_TALKATIVE
        env = [f"{_NCCL_DEBUG}={_NCCL_TALKATIVE[0]}"] if silent else []
        tree, document = override_document(document, ["nccl_debug=true"], env)
        spec = parse_document(document, environ)
    notes += _script_not_here(spec)
    by_default = tree.get("workdir") is None
    code = _code_folder("." if by_default else spec.workdir, typed)
    if by_default and code is not None and not may_travel_unasked(code, spec, environ):
        code = None
        notes.append(
            "workdir: an empty folder, because this one is no project's, and is not sent unasked"
        )
    return JobInput(spec, _filled(tree, spec), tuple(notes), code, by_default)


def _code_folder(workdir: str | None, typed: Typed) -> Path | None:
    """Return the folder that a relative `workdir` names: beside the job file, or here."""
    if workdir is None or workdir.startswith("/"):
        return None
    beside = typed.file is not None and typed.file != STDIN
    base = Path(typed.file or "").parent if beside else Path()
    folder = (base / workdir).absolute()
    return Path(os.path.normpath(folder))


def _script_not_here(spec: JobSpec) -> list[str]:
    """Return a note if the script does not exist in the job's folder, and that is the current one.
    Catches typing errors before the job waits for nodes. With `setup`, which may create the script,
    returns nothing."""
    if spec.setup is not None or spec.workdir is None or not isinstance(spec.run, Argv):
        return []
    script = spec.run.argv[0]
    # Without a launcher, the script may be a program on the nodes' PATH.
    if spec.launcher is Launcher.NONE or suffix(script) != ".py" or script.startswith("/"):
        return []
    try:
        here = str(Path.cwd())
    except OSError:  # the folder was removed
        return []
    if here != spec.workdir or os.path.exists(script):
        return []
    return [f"{safe(script)} is not in this folder; the nodes need it in theirs"]


def with_variables(
    job: Mapping[str, object], env: tuple[str, ...], environ: Mapping[str, str]
) -> dict[str, object]:
    """Return a built-in job with the variables that a user gave, checked. Raises SpecError."""
    tree, document = override_document(Document(dict(job)), (), env)
    return _filled(tree, parse_document(document, environ))


def _document(typed: Typed, notes: list[str]) -> Document:
    """Return the base of the job: a job file, a batch script, or an empty document."""
    if typed.sbatch is not None:
        from muster.spec.slurm.sbatch import from_sbatch

        made = from_sbatch(_text(typed.sbatch))
        notes += made.notes
        return Document(made.mapping)
    return Document({}) if typed.file is None else read_yaml(_text(typed.file))


def _filled(tree: dict[str, object], spec: JobSpec) -> dict[str, object]:
    """Return `tree` with the values of passed-through variables, because the coordinator cannot see
    the caller's environment."""
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
        notes.append(f"the command after -- replaces `run` in {where}")
    launcher = tree.get("launcher")
    made = from_command(typed.command, launcher if isinstance(launcher, str) else None)
    if made.note:
        notes.append(made.note)
    changed = {**tree, **made.mapping}
    gone = set(made.mapping)
    lines = {path: line for path, line in document.lines.items() if path not in gone}
    return changed, replace(document, tree=changed, lines=lines)


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
    """True if `muster submit job.yaml` was meant to be `muster submit -f job.yaml`."""
    return (
        len(command) == 1 and command[0].endswith((".yaml", ".yml")) and os.path.exists(command[0])
    )


def meant_for_a_shell(command: tuple[str, ...]) -> str | None:
    """Return the intended command if a whole command line was quoted as one argument, else None."""
    if len(command) != 1 or os.path.exists(command[0]):
        return None
    line = command[0].strip()
    if any(char in line for char in _OF_A_SHELL) or "=" in line.partition(" ")[0]:
        return f"bash -c {shlex.quote(line)}"
    return line if any(char.isspace() for char in line) else None

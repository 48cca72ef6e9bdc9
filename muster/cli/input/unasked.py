"""Folders that are no project: they do not travel with a job unless it names them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from muster.cli.errors import RefusedError
from muster.cli.output.format import safe
from muster.spec.model import Argv, JobSpec, Shell

_SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders of everybody
_BETWEEN_WORDS: Final = re.compile(r"[\s;&|<>()'\"`=]+")
_WORDS_MAX: Final = 1000


def may_travel_unasked(folder: Path, spec: JobSpec, environ: Mapping[str, str]) -> bool:
    """Return False for a folder that is no project and of which the job names nothing, as `submit
    -- nvidia-smi` in the home directory. Raises RefusedError if the job names a file of it."""
    what = _no_project(folder, environ)
    if what is None:
        return True
    found = next((word for word in _words(spec) if _is_in(folder, word)), None)
    if found is None:
        return False
    raise RefusedError(
        f"the job needs {safe(found)} of {safe(str(folder))}, which is {what}: all of it would be "
        "sent\n  move the job into a folder of its own; or write `workdir: .` to send all of this "
        "one, or `workdir: none` for an empty folder (--set workdir=none)"
    )


def _no_project(folder: Path, environ: Mapping[str, str]) -> str | None:
    home = Path(environ.get("HOME") or "~").expanduser()
    if folder == home:
        return "your home directory"
    if folder in home.parents or folder == Path("/"):
        return "above your home directory" if folder in home.parents else "the root directory"
    return "shared by all users" if str(folder) in _SHARED else None


def _words(spec: JobSpec) -> Iterator[str]:
    """Yield what may be names of files in the job's commands."""
    commands = (spec.setup, spec.run, spec.roles.launcher.run, spec.roles.worker.run)
    for command in commands:
        if isinstance(command, Argv):
            for word in command.argv[:_WORDS_MAX]:
                yield word
                yield from _BETWEEN_WORDS.split(word)[:_WORDS_MAX]
        elif isinstance(command, Shell):
            yield from _BETWEEN_WORDS.split(command.script)[:_WORDS_MAX]


def _is_in(folder: Path, word: str) -> bool:
    if not word or word.startswith(("/", "-", "~", "$")) or "\0" in word:
        return False
    module = f"{word.replace('.', '/')}.py"
    return os.path.exists(folder / word) or os.path.exists(folder / module)

"""Hint for jobs without a `workdir`, whose relative paths are not found in their empty folder."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from muster.protocol.outcome import Cause
from muster.spec.model import Argv, JobSpec
from orchestrator.core.model.state import Task

# Python's message, with a path that Python has made absolute; then messages with the path as given.
_OPENED: Final = re.compile(
    r"can't open file '([^']+)': \[Errno 2\](?: No such file or directory)?"
)
_RELATIVE: Final = (
    re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^/'][^']*)'"),
    re.compile(r"The program '([^/'][^']*/[^']*)' was not found"),
    re.compile(r"(?:^|[\s:'])((?:\.{1,2}|[\w.-]+)/[^\s:']+): No such file or directory"),
)
_MODULE: Final = re.compile(r"No module named '?([\w.]+)")
ADVICE: Final = (
    "; the job has no `workdir`, so it ran in an empty folder: send the one that has {} "
    "with the job (muster submit --set workdir=.), or name one that every node has"
)


def add_workdir_hint(spec: JobSpec, task: Task, cause: Cause | None) -> Cause | None:
    """Add the hint to the cause, if a file was not found in the job's empty folder."""
    if cause is None or spec.workdir is not None or spec.bundle is not None or spec.git is not None:
        return cause
    folder = task.prepared.workdir if task.prepared is not None else ""
    opened = _OPENED.search(cause.text)
    if opened is None:
        found = (pattern.search(cause.text) for pattern in _RELATIVE)
        name = next((match[1] for match in found if match is not None), None)
        name = name or _own_module(spec, cause.text)
        said = cause.text.rstrip(".")
    else:
        within = folder and opened[1].startswith(f"{folder}/")
        name = opened[1].removeprefix(f"{folder}/") if within else None
        # The rest of the message is advice on the wrong folder, so it is cut off.
        said = cause.text[: opened.end()]
    return cause if name is None else replace(cause, text=said + ADVICE.format(name))


def _own_module(spec: JobSpec, text: str) -> str | None:
    """The module that the job's own argv names: `-m train` searches the folder first."""
    missing = _MODULE.search(text)
    words = spec.run.argv[:2] if isinstance(spec.run, Argv) else ()
    if missing is None or len(words) < 2 or words[0] != "-m":
        return None
    package = words[1].partition(".")[0]
    return package if missing[1].partition(".")[0] == package else None

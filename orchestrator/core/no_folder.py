"""A job without a `workdir` runs in an empty folder of its own: who did not know that is told so
when a file is not found there."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from muster.protocol.outcome import Cause
from muster.spec.types import JobSpec
from orchestrator.core.state import Task

# Python's words, with a path that it has made absolute; then those that say it as it was given.
_OPENED: Final = re.compile(r"can't open file '([^']+)': \[Errno 2\]")
_RELATIVE: Final = (
    re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^/'][^']*)'"),
    re.compile(r"The program '([^/'][^']*/[^']*)' was not found"),
    re.compile(r"(?:^|[\s:'])((?:\.{1,2}|[\w.-]+)/[^\s:']+): No such file or directory"),
)
ADVICE: Final = (
    "; the job has no `workdir`, so it ran in an empty folder: name the one that has {}, which "
    "every node must have (muster submit --set workdir=/shared/folder)"
)


def told_of_the_folder(spec: JobSpec, task: Task, cause: Cause | None) -> Cause | None:
    """The cause, with what to do where a file was looked for in that folder."""
    if cause is None or spec.workdir is not None:
        return cause
    name = _missing(cause.text, task.prepared.workdir if task.prepared is not None else "")
    return cause if name is None else replace(cause, text=cause.text + ADVICE.format(name))


def _missing(text: str, folder: str) -> str | None:
    opened = _OPENED.search(text)
    if opened is not None:
        path = opened[1]
        return path.removeprefix(f"{folder}/") if folder and path.startswith(f"{folder}/") else None
    found = (pattern.search(text) for pattern in _RELATIVE)
    return next((match[1] for match in found if match is not None), None)

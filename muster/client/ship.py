"""Text files that travel inside a job: its `setup` writes them into the folder of each task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

_WRITE: Final = 'while [ $# -gt 1 ]; do printf %s "$2" >"$1"; shift 2; done'


def source_of(room: ModuleType, program: str) -> str:
    """The text of a program of ours, which is not imported: it is for the job's interpreter."""
    (folder,) = room.__path__
    return Path(folder, f"{program}.py").read_text()


def shipped(files: Mapping[str, str]) -> list[str]:
    """A `setup` that makes `files`, texts by name, where the job runs. A text is a word of a
    command line, of at most 128 KiB.
    """
    words = [word for file in files.items() for word in file]
    return ["/bin/sh", "-euc", _WRITE, "setup", *words]

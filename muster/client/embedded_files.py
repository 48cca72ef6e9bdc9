"""Text files shipped inside a job: its `setup` writes them into the folder of each task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

_WRITE: Final = (
    'while [ $# -gt 1 ]; do mkdir -p "$(dirname "$1")"; printf %s "$2" >>"$1"; shift 2; done'
)
_PIECE: Final = 30_000
"""Characters, of at most four bytes each, because Linux refuses arguments of 128 KiB."""


def source_of(room: ModuleType, program: str) -> str:
    """Return the source of a program of ours. It is not imported, because the job's interpreter
    runs it."""
    (folder,) = room.__path__
    return Path(folder, f"{program}.py").read_text()


def package_of(room: ModuleType) -> dict[str, str]:
    """Return the sources of a package, keyed by the paths from which `python -m` finds it under the
    same name, whether Muster is installed there or not."""
    parts = room.__name__.split(".")
    found = {"/".join([*parts[:depth], "__init__.py"]): "" for depth in range(1, len(parts))}
    (folder,) = room.__path__
    for file in sorted(Path(folder).glob("*.py")):
        found["/".join([*parts, file.name])] = file.read_text()
    return found


def shipped(files: Mapping[str, str]) -> list[str]:
    """Return a `setup` that writes `files` (text by name) where the job runs. A job's command may
    have 512 KiB in all."""
    words = []
    for name, text in files.items():
        for begin in range(0, len(text) or 1, _PIECE):
            words += [name, text[begin : begin + _PIECE]]
    return ["/bin/sh", "-euc", _WRITE, "setup", *words]

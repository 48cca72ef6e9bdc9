"""The jobs whose logs are measured."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.launch.cluster import job_of

PROGRAMS = Path(__file__).resolve().parent / "programs"


def python(program: str, *args: object, node: str = "node-1") -> bytes:
    """Return the body of a submit that runs one of `programs` on a node."""
    argv = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    return job_of(launcher="none", run=argv, placement={"include": [node]})

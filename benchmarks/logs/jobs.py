"""The jobs whose logs are measured."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.launch.cluster import job_of

PROGRAMS = Path(__file__).resolve().parent / "programs"


def python(program: str, *args: object, node: str = "node-1") -> bytes:
    """The body of a submit: one of `programs` on that node."""
    argv = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    return job_of(launcher="none", run=argv, placement={"include": [node]})

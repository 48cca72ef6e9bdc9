"""Anything that a job names (a process, a file) is tested before root opens it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agent.shim.system import job_files, syscalls
from agent.shim.system.job_files import RefusedFileError, open_checked
from agent.shim.system.process_tree import ProcessTree
from agent.shims.members import check
from tests.agent.shims.shim_of import be_shim_of
from tests.planted import Bug, put, wrap


def a_job_names_a_process_of_another(folder: Path) -> None:
    be_shim_of(folder)
    found = check(folder, {0: os.getpid(), 1: os.getppid()})
    passed = [process.pid for process in found.values() if not process.problem]
    assert passed == [], f"processes {passed} are looked at, and are not of the task"


def a_job_moves_a_file_of_another(folder: Path) -> None:
    (folder / "file").write_bytes(b"of somebody else")
    try:
        os.close(open_checked(str(folder / "file"), os.geteuid() + 1))
    except RefusedFileError:
        return
    raise AssertionError("a file of another user is opened")


def _of_everybody(_: ProcessTree) -> dict[int, int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return {pid: found[2] for pid in pids if (found := syscalls.stat_of(pid)) is not None}


def _of_any_owner(real: Any) -> Any:
    def reopen(handle: int, path: str, _owner: int | None, **options: Any) -> int:
        return int(real(handle, path, None, **options))

    return reopen


BUGS = (
    Bug(
        "a pid is looked at because the job named it",
        "trust",
        put(ProcessTree, "members", _of_everybody),
        a_job_names_a_process_of_another,
    ),
    Bug(
        "a file is read because it is in the job's folder",
        "trust",
        wrap(job_files, "reopen", _of_any_owner),
        a_job_moves_a_file_of_another,
    ),
)

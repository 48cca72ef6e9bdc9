"""Anything that a job names (a process, a file) is tested before root opens it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent.shim.system import job_files, syscalls
from agent.shim.system.job_files import RefusedFileError, open_checked
from agent.shims import members
from agent.shims.members import Process, check
from tests.agent.shims.shim_of import be_shim_of
from tests.planted import Bug, put


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


def _takes_its_word(pid: int, _members: Mapping[int, int], _uid: int) -> Process:
    found = syscalls.stat_of(pid)
    return Process(pid, 0 if found is None else found[2])


def _any_owner(status: os.stat_result, _owner: int | None, *, fifo: bool) -> str:
    return "" if status.st_nlink == 1 and not fifo else "is no file of one name"


BUGS = (
    Bug(
        "a pid is looked at because the job named it",
        "trust",
        put(members, "_checked", _takes_its_word),
        a_job_names_a_process_of_another,
    ),
    Bug(
        "a file is read because it is in the job's folder",
        "trust",
        put(job_files, "_problem", _any_owner),
        a_job_moves_a_file_of_another,
    ),
)

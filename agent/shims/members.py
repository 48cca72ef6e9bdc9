"""The test of every process that a job names, before the agent looks at it.

A job reports the pids of its ranks and may report any number, and the agent may be root. So a
process is looked at only if it belongs to the task, as for a signal (agent/shim/process_tree.py),
and is not root's. It is known by its pid and its start time: whoever looks at it compares the start
time again after the look, because the pid may have been given to another process meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from agent.shim import syscalls
from agent.shim.cgroup import Cgroup
from agent.shim.process_tree import Tree
from agent.shims.shim_files import identity_of
from agent.taskdirs.taskdirs import user_of

ENDED: Final = "the process has ended"


class Process(NamedTuple):
    """`began` is the start time in clock ticks since boot. `problem`: why it must not be looked
    at, "" if it may."""

    pid: int
    began: int = 0
    problem: str = ""

    @property
    def same(self) -> bool:
        """Whether this pid is still this process."""
        found = syscalls.stat_of(self.pid)
        return found is not None and found[2] == self.began


def check(folder: Path, pids: Mapping[int, int]) -> dict[int, Process]:
    """The processes with these pids, by rank, of the task whose folder this is. Blocks."""
    try:
        uid = user_of(folder).uid
        members = _members(folder)
    except OSError as error:
        why = f"the folder of the task cannot be examined: {error.strerror}"
        return {rank: Process(pid, problem=why) for rank, pid in pids.items()}
    return {rank: _checked(pid, members, uid) for rank, pid in pids.items()}


def _members(folder: Path) -> dict[int, int]:
    """Living processes of the task: pid to start time; empty if its shim has ended."""
    shim = identity_of(folder)
    if shim is None or shim.start_time is None or shim.boot_id != syscalls.boot_id():
        return {}
    cgroup = Cgroup(shim.cgroup) if shim.cgroup else None
    try:
        found = Tree(cgroup, shim.pid).members()
    finally:
        if cgroup is not None:
            cgroup.close()
    # Compared afterwards: the shim was there all the while, or its pid may be another's.
    return found if Process(shim.pid, shim.start_time).same else {}


def _checked(pid: int, members: Mapping[int, int], uid: int) -> Process:
    began = members.get(pid)
    if began is None:
        found = syscalls.stat_of(pid)
        if found is None or found[0] in "ZX":
            return Process(pid, problem=ENDED)
        return Process(pid, problem=f"process {pid}, which the job named, is not of this task")
    if uid != 0 and 0 in syscalls.uids_of(pid):
        return Process(pid, problem=f"process {pid} runs as root, and the job does not")
    process = Process(pid, began)
    return process if process.same else Process(pid, problem=ENDED)

"""Check of every process that a job names, before the agent inspects it.

A job reports the pids of its ranks and may report any number, and the agent may be root. So a
process is inspected only if it belongs to the task, as for a signal
(agent/shim/system/process_tree.py), and is not root's. It is identified by pid and start time. The
reader compares the start time again afterwards, because the pid may have been reused meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from agent.shim.system import syscalls
from agent.shim.system.cgroup import Cgroup
from agent.shim.system.process_tree import ProcessTree
from agent.shims.shim_files import identity_of
from agent.taskdirs.taskdirs import user_of

ENDED: Final = "the process has ended"


class Process(NamedTuple):
    """A process. `began` is the start time in clock ticks since boot. `problem` is why it must not
    be inspected, or "".
    """

    pid: int
    began: int = 0
    problem: str = ""

    @property
    def same(self) -> bool:
        """True if this pid is still this process."""
        found = syscalls.stat_of(self.pid)
        return found is not None and found[2] == self.began


def check(folder: Path, pids: Mapping[int, int]) -> dict[int, Process]:
    """Return the processes with these pids, by rank, of the task with this directory. Blocks."""
    try:
        uid = user_of(folder).uid
        members = _members(folder)
    except OSError as error:
        why = f"the folder of the task cannot be examined: {error.strerror}"
        return {rank: Process(pid, problem=why) for rank, pid in pids.items()}
    return {rank: _checked(pid, members, uid) for rank, pid in pids.items()}


def _members(folder: Path) -> dict[int, int]:
    """Return the living processes of the task: pid to start time; empty if its shim has exited."""
    shim = identity_of(folder)
    if shim is None or shim.start_time is None or shim.boot_id != syscalls.boot_id():
        return {}
    cgroup = Cgroup(shim.cgroup) if shim.cgroup else None
    try:
        found = ProcessTree(cgroup, shim.pid).members()
    finally:
        if cgroup is not None:
            cgroup.close()
    # Compare afterwards: the shim must have lived all the while, because its pid may be reused.
    return found if Process(shim.pid, shim.start_time).same else {}


def _checked(pid: int, members: Mapping[int, int], uid: int) -> Process:
    began = members.get(pid)
    if began is None:
        found = syscalls.stat_of(pid)
        if found is None or found[0] in "ZX":
            return Process(pid, problem=ENDED)
        return Process(pid, problem=f"process {pid}, which the job reported, is not of this task")
    if uid != 0 and 0 in syscalls.uids_of(pid):
        return Process(pid, problem=f"process {pid} runs as root, and the job does not")
    process = Process(pid, began)
    return process if process.same else Process(pid, problem=ENDED)

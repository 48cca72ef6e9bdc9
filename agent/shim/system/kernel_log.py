"""The kernel's log messages about a task: processes killed for memory, errors of GPUs.

The log goes back to the boot, so only messages younger than the task count.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from agent.shim.system.cgroup import FOLDER

PATH = "/dev/kmsg"
# A read with a smaller buffer than the record fails.
RECORD_BYTES_MAX = 8192
LINES_MAX = 32
LINE_CHARS_MAX = 400
RECORDS_MAX = 1 << 16
# The kernel's clock and ours differ by less.
SLACK_S = 1.0

_OF_INTEREST = re.compile(
    r"(?:Memory cgroup o|O)ut of memory: Killed process (\d+)|NVRM: .*(?:Xid|fallen off the bus)"
    r"|oom-kill:constraint="
)
_PID = re.compile(r"\bpid=(\d+)")
_KILL = "oom-kill:"
# The line before a kill has the cgroup of the process. Users choose names in it, so match it whole.
_CGROUP = re.compile(
    r"oom-kill:constraint=\w+,nodemask=[^=]*,cpuset=[^,]*,mems_allowed=[\d,-]*,"
    r"(?:global_oom|oom_memcg=[^,]*),task_memcg=([^,]*),task=.*,pid=(\d+),uid=\d+$"
)


class KernelLog:
    """The lines that may concern a task. Without permission to read the log there are none.

    The log is opened only after a failure, so that a task that ends well reads nothing.
    """

    def __init__(self, cgroup: str | None = None, path: str = PATH) -> None:
        """`cgroup` is the path of the task's cgroup, whose name is unique on the machine."""
        self._inside = "" if cgroup is None else f"/{FOLDER}/{os.path.basename(cgroup)}/"
        self._path = path
        self._since = time.monotonic() - SLACK_S

    def about(self, pid: int | None, said: str) -> str:
        """The lines about a failed rank, "" if none. `pid` is a process of the task.

        These are lines that name its process, kills in the task's cgroup that the rank's output
        names, and GPU errors that name no process. An output alone proves nothing: it may name a
        process of another user.
        """
        found = []
        ours = set()
        for line in self._lines():
            if line.startswith(_KILL):
                kill = _CGROUP.match(line)
                if kill is not None and self._inside and self._inside in f"{kill[1]}/":
                    ours.add(kill[2])
                continue
            killed, user = _OF_INTEREST.match(line), _PID.search(line)
            number = killed[1] if killed is not None and killed[1] else user[1] if user else None
            its_own = number is None or number == str(pid)
            if its_own or (number in ours and re.search(rf"\bpid\D{{0,3}}{number}\b", said)):
                found.append(line[:LINE_CHARS_MAX])
        return "\n".join(found[:LINES_MAX])

    def _lines(self) -> list[str]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            return [line for line in self._read(fd) if _OF_INTEREST.match(line)]
        finally:
            os.close(fd)

    def _read(self, fd: int) -> Iterator[str]:
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(fd, RECORD_BYTES_MAX)
            except BrokenPipeError:
                # Records were overwritten; the next read goes on with the oldest that exists there.
                continue
            except OSError:
                return
            if not record:
                return
            # "priority,number,microseconds,flags;text", lines of context, each ended by a newline.
            head, _, text = record.decode(errors="replace").partition(";")
            fields = head.split(",")
            moment = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0
            if moment >= self._since:
                yield text.partition("\n")[0]

"""Parser of kernel log lines about failures: a process killed for lack of memory, or an error of
NVIDIA's driver. The callers interpret the result: the agent, which follows the log
(agent/monitors/hardware), and the coordinator, which gets a rank's lines with its end.

The kernel's lines contain names chosen by users: of processes, which may begin a line (15
characters), of files and cgroups. So patterns match from the beginning of a line, and a name ends
at the last bracket.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Killed(NamedTuple):
    """A killed process. `of_cgroup`: its cgroup's limit was reached, else the node's."""

    pid: int
    name: str
    resident_bytes: int
    of_cgroup: bool


class GpuError(NamedTuple):
    """An error of a GPU. `xid` is 0 if the GPU was lost without one; `address` is as the driver
    wrote it, or ""; `said` is the rest of the line.
    """

    xid: int
    address: str
    said: str


def read(line: str) -> Killed | GpuError | None:
    """Parse a line; None if it reports neither."""
    if found := _KILLED.match(line):
        resident = sum(int(number) for number in _RESIDENT.findall(found["rest"])) << 10
        return Killed(int(found["pid"]), found["name"], resident, found["memcg"] is not None)
    if found := _XID.match(line):
        return GpuError(int(found["xid"]), found["pci"], found["said"].strip())
    if found := _OFF_THE_BUS.match(line):
        return GpuError(0, found["pci"] or "", "it has fallen off the bus")
    return None


def function_of(address: str) -> str:
    """Return an address in the usual form: `0000:1b:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" + ("" if "." in rest else ".0")


ADDRESS: Final = r"(?:PCI:)?(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
"""Pattern of a PCI function, in the group `pci`, in upper or lower case."""

_KILLED: Final = re.compile(
    r"(?P<memcg>Memory cgroup )?out of memory: Killed process (?P<pid>\d{1,18}) \((?P<name>.*)\)"
    r"(?P<rest>(?:[ ,][^()]*)?)$",
    re.IGNORECASE,
)
_RESIDENT: Final = re.compile(r"\b(?:anon|file|shmem)-rss:(\d{1,12})kB")
_XID: Final = re.compile(
    rf"NVRM: Xid \({ADDRESS}[^)]*\)(?:[^:]*): (?P<xid>\d{{1,9}}\b),? ?(?P<said>.*)$", re.IGNORECASE
)
_OFF_THE_BUS: Final = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:(?:at )?{ADDRESS}.*|has )fallen off the bus", re.IGNORECASE
)

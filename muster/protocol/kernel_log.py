"""Reads lines of a kernel's log that tell of a failure: a process that it killed for memory, an
error of NVIDIA's driver. What either means is for the reader to say: the agent, which follows the
log (agent/monitors/hardware), and the coordinator, which gets a rank's own lines with its end.

Users choose names that the kernel writes: of processes, which may begin a line (15 characters), of
files and cgroups. So a line counts from its beginning, and a name ends at the last bracket.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Killed(NamedTuple):
    """A process that was killed. `of_cgroup`: the limit of its cgroup was met, else the node's."""

    pid: int
    name: str
    resident_bytes: int
    of_cgroup: bool


class GpuError(NamedTuple):
    """An error of a GPU. `xid` is 0 where it is gone without one; `address` as the driver wrote it,
    "" where it did not; `said` the rest of the line."""

    xid: int
    address: str
    said: str


def read(line: str) -> Killed | GpuError | None:
    """What a line tells; None where it tells of neither."""
    if found := _KILLED.match(line):
        resident = sum(int(number) for number in _RESIDENT.findall(found["rest"])) << 10
        return Killed(int(found["pid"]), found["name"], resident, found["memcg"] is not None)
    if found := _XID.match(line):
        return GpuError(int(found["xid"]), found["pci"], found["said"].strip())
    if found := _OFF_THE_BUS.match(line):
        return GpuError(0, found["pci"] or "", "it has fallen off the bus")
    return None


def function_of(address: str) -> str:
    """An address as everywhere else: `0000:1b:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" + ("" if "." in rest else ".0")


ADDRESS: Final = r"(?:PCI:)?(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
"""Of a PCI function, in the group `pci`; letters of either case."""

_KILLED: Final = re.compile(
    r"(?P<memcg>Memory cgroup )?out of memory: Killed process (?P<pid>\d+) \((?P<name>.*)\)"
    r"(?P<rest>(?:[ ,][^()]*)?)$",
    re.IGNORECASE,
)
_RESIDENT: Final = re.compile(r"\b(?:anon|file|shmem)-rss:(\d+)kB")
_XID: Final = re.compile(
    rf"NVRM: Xid \({ADDRESS}[^)]*\)(?:[^:]*): (?P<xid>\d+),? ?(?P<said>.*)$", re.IGNORECASE
)
_OFF_THE_BUS: Final = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:(?:at )?{ADDRESS}.*|has )fallen off the bus", re.IGNORECASE
)

"""Reads what the kernel says of hardware: one line of its log in, what is known of it out. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agent.hardware.xids import grade_of, name_of
from muster.protocol.hardware import OOM, TEXT_MAX, Grade

_KERNEL: Final = 0
"""The facility of the kernel's own lines. What a program writes there has another one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of /dev/kmsg. `seq` grows without gaps within one boot."""

    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a line tells. `task` is the name of the cgroup of a task, as the kernel has it."""

    code: str
    grade: Grade
    text: str
    pci: str = ""
    task: str = ""
    pid: int = 0


def record(raw: bytes) -> Record | None:
    """A record as read: `level,seq,microseconds,flags;text`; None for what is none of the
    kernel's own."""
    head, found, rest = raw.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 4 or not fields[0].isdigit() or not fields[1].isdigit():
        return None
    if int(fields[0]) >> 3 != _KERNEL:
        return None
    # Lines that begin with a space are the record's dictionary.
    text = rest.split(b"\n", 1)[0].decode(errors="replace")
    return Record(int(fields[1]), "".join(c if c.isprintable() else " " for c in text))


class Reader:
    """Lines in their order. A kill for memory takes two, of which the first names the cgroup."""

    def __init__(self) -> None:
        self._cgroups: dict[int, str] = {}

    def read(self, text: str) -> Seen | None:
        """What a line tells of hardware, or of memory that ran out; None where it is of neither."""
        if found := _OOM_CGROUP.search(text):
            if len(self._cgroups) >= _PENDING_MAX:
                self._cgroups.clear()
            self._cgroups[int(found["pid"])] = found["cgroup"]
            return None
        if found := _KILLED.search(text):
            return self._killed(found)
        for pattern, read in _LINES:
            if found := pattern.search(text):
                return read(found)
        return None

    def _killed(self, found: re.Match[str]) -> Seen:
        pid, name = int(found["pid"]), found["name"]
        cgroup = self._cgroups.pop(pid, "")
        task = _TASK.search(cgroup)
        had = sum(int(number) for number in _RSS.findall(found["rest"]))
        where = "of its cgroup" if found["memcg"] else "of the node"
        held = f", which had {had / 1048576:.1f} GiB" if had else ""
        text = f"the memory {where} ran out: the kernel killed {name} (process {pid}){held}"
        return Seen(OOM, Grade.SHOWN, _cut(text), task=task[1] if task else "", pid=pid)


_PENDING_MAX: Final = 256
_OOM_CGROUP: Final = re.compile(
    r"oom-kill:constraint=.*\btask_memcg=(?P<cgroup>[^,]*),.*\bpid=(?P<pid>\d+)"
)
_KILLED: Final = re.compile(
    r"(?P<memcg>Memory cgroup )?out of memory: Killed process (?P<pid>\d+) \((?P<name>.*?)\)"
    r"(?P<rest>(?:[ ,].*)?)$",
    re.IGNORECASE,
)
_RSS: Final = re.compile(r"\b(?:anon|file|shmem)-rss:(\d+)kB")
_TASK: Final = re.compile(r"/muster/(\d+\.\d+\.\d+)(?:/|$)")

_ADDRESS: Final = r"(?:PCI:)?(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"


def _xid(found: re.Match[str]) -> Seen:
    xid, said, pci = int(found["xid"]), found["said"].strip(), _function(found["pci"])
    name = name_of(xid)
    what = f"Xid {xid}" + (f", {name}" if name else "")
    # Its process and channel say nothing to most; words that repeat the name say nothing at all.
    rest = _NO_NEWS.sub("", said)
    told = f" ({rest})" if rest and rest.lower() not in name.lower() else ""
    return Seen(f"xid {xid}", grade_of(xid, said), _cut(f"GPU {pci}: {what}{told}"), pci)


def _off_bus(found: re.Match[str]) -> Seen:
    pci = _function(found["pci"])
    # Of the same event Xid 79 tells, where the driver still can.
    return Seen("xid 79", Grade.CRITICAL, f"GPU {pci}: it has fallen off the bus", pci)


def _link(found: re.Match[str]) -> Seen:
    pci, way = _function(found["pci"]), found["way"].lower()
    who = f" ({found['name']})" if found["name"] else ""
    grade = Grade.NOTE if way == "down" else Grade.SHOWN
    text = f"card {pci}{who}: its link is {way}"
    return Seen(f"link {found['name'] or ''} {way}", grade, text, pci)


_NO_NEWS: Final = re.compile(r"\b(?:pid='?[^,']*'?|name='?[^,']*'?),? ?|[. ]+$")
_LINES: Final = (
    (
        re.compile(
            rf"NVRM: Xid \({_ADDRESS}[^)]*\)(?:[^:]*): (?P<xid>\d+),? ?(?P<said>.*)$",
            re.IGNORECASE,
        ),
        _xid,
    ),
    (
        re.compile(rf"NVRM: .*{_ADDRESS}.*fallen off the bus", re.IGNORECASE),
        _off_bus,
    ),
    (
        re.compile(
            rf"^(?:mlx5_core|mlx4_en|bnxt_en|ice|i40e|ixgbe|igb|e1000e|tg3|ena|irdma) {_ADDRESS}:?"
            r"(?: (?P<name>[A-Za-z0-9_.@-]{1,15}):)?(?: Port: \d+)?"
            r"(?: NIC)? Link (?:is )?(?P<way>down|up)\b",
            re.IGNORECASE,
        ),
        _link,
    ),
)


def _function(address: str) -> str:
    """As everywhere else: `0000:1b:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" + ("" if "." in rest else ".0")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."

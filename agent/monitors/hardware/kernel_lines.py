"""Parser of kernel log lines about hardware: message and grade of a line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from muster.protocol.observations import kernel_log
from muster.protocol.observations.hardware_events import OOM, TEXT_MAX, Grade
from muster.protocol.observations.kernel_log import ADDRESS, GpuError, Killed, function_of
from muster.protocol.observations.xids import grade_of, name_of

_KERNEL: Final = 0
"""Facility of the kernel's own lines. Lines from programs have another one."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of /dev/kmsg. `seq` grows without gaps within one boot."""

    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """Meaning of a line. `task` is the cgroup name of a task, as the kernel spells it."""

    code: str
    grade: Grade
    text: str
    pci: str = ""
    task: str = ""
    pid: int = 0


def record(raw: bytes) -> Record | None:
    """Parse a record: `level,seq,microseconds,flags;text`. Returns None if it is not the
    kernel's.
    """
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
    """Reads lines in order. An out-of-memory kill takes two; the first names the cgroup."""

    def __init__(self) -> None:
        self._cgroups: dict[int, str] = {}

    def read(self, text: str) -> KernelEvent | None:
        """Return the hardware or memory event of a line, or None."""
        if found := _OOM_CGROUP.match(text):
            if len(self._cgroups) >= _PENDING_MAX:
                self._cgroups.clear()
            self._cgroups[int(found["pid"])] = found["cgroup"]
            return None
        match kernel_log.read(text):
            case Killed() as killed:
                return self._killed(killed)
            case GpuError() as error:
                # Without an address, the GPU cannot be attributed.
                return _failed(error) if error.address else None
            case None:
                found = _LINK.search(text)
                return _link(found) if found else None

    def _killed(self, killed: Killed) -> KernelEvent:
        task = _TASK.search(self._cgroups.pop(killed.pid, ""))
        where = "of its cgroup" if killed.of_cgroup else "of the node"
        had = killed.resident_bytes / (1 << 30)
        held = f", which had {had:.1f} GiB" if had else ""
        who = f"{killed.name} (process {killed.pid})"
        text = f"the memory {where} ran out: the kernel killed {who}{held}"
        name = task[1].replace("-", ".") if task else ""
        return KernelEvent(OOM, Grade.SHOWN, _cut(text), task=name, pid=killed.pid)


_PENDING_MAX: Final = 256
_OOM_CGROUP: Final = re.compile(
    r"oom-kill:constraint=\w+,nodemask=[^=]*,cpuset=[^,]*,mems_allowed=[\d,-]*,"
    r"(?:global_oom|oom_memcg=[^,]*),task_memcg=(?P<cgroup>[^,]*),task=.*,pid=(?P<pid>\d+),uid=\d+$"
)
"""Match to the end of the line: users choose names of cgroups, which may imitate what follows
them.
"""
_TASK: Final = re.compile(
    r"/muster(?:/(?=\d+\.)|\.slice/muster-task-)(\d+[.-]\d+[.-]\d+)(?:\.service)?(?:/|$)"
)
"""A task's cgroup of the agent, or the one of its systemd unit."""


def _failed(error: GpuError) -> KernelEvent:
    pci = function_of(error.address)
    if not error.xid:
        # Xid 79 reports the same event, if the driver still can.
        return KernelEvent("xid 79", Grade.CRITICAL, f"GPU {pci}: {error.said}", pci)
    name = name_of(error.xid)
    what = f"Xid {error.xid}" + (f", {name}" if name else "")
    # Process and channel help few readers, and text that repeats the name helps nobody.
    rest = _NO_NEWS.sub("", error.said)
    detail = f" ({rest})" if rest and rest.lower() not in name.lower() else ""
    grade = grade_of(error.xid, error.said)
    return KernelEvent(f"xid {error.xid}", grade, _cut(f"GPU {pci}: {what}{detail}"), pci)


def _link(found: re.Match[str]) -> KernelEvent:
    pci, way = function_of(found["pci"]), found["way"].lower()
    who = f" ({found['name']})" if found["name"] else ""
    grade = Grade.NOTE if way == "down" else Grade.SHOWN
    text = f"card {pci}{who}: its link is {way}"
    return KernelEvent(f"link {found['name'] or ''} {way}", grade, text, pci)


_NO_NEWS: Final = re.compile(r"\b(?:pid='?[^,']*'?|name='?[^,']*'?),? ?|[. ]+$")
_LINK: Final = re.compile(
    rf"^(?:mlx5_core|mlx4_en|bnxt_en|ice|i40e|ixgbe|igb|e1000e|tg3|ena|irdma) {ADDRESS}:?"
    r"(?: (?P<name>[A-Za-z0-9_.@-]{1,15}):)?(?: Port: \d+)?"
    r"(?: NIC)? Link (?:is )?(?P<way>down|up)\b",
    re.IGNORECASE,
)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."

"""What a node's kernel wrote about a failure: processes killed for memory, and errors of GPUs."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_KILLED: Final = re.compile(
    r"(Memory cgroup out|Out) of memory: Killed process (\d+) \(([^)]*)\)(.*)"
)
_RESIDENT: Final = re.compile(r"(?:anon|file|shmem)-rss:(\d+)kB")
_XID: Final = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)\)[^:]*: (\d+)(?:, *(.*))?")
_OFF_THE_BUS: Final = re.compile(
    r"NVRM: (?:.*?\b([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+))?.*fallen off the bus"
)
_WORDS_CHARS_MAX: Final = 160

# The numbers that a program can cause, or that need nothing done; the others are of the machine.
OF_THE_PROGRAM: Final = {
    13: "a kernel of the program did what it may not (an index out of range, most often)",
    31: "the program used an address of the GPU's memory that is not its own",
    43: "the program's GPU channel was stopped after an error of the program",
    45: "the GPU's channels were cleaned up as the program ended",
    63: "a memory row was remapped, or is to be at the next reset",
    68: "the video processor reported an error of the program",
    92: "many single-bit memory errors were corrected",
    109: "the program's work on the GPU did not end in its time",
}
_ADVICE_PROGRAM: Final = (
    "{0}: run it once with env CUDA_LAUNCH_BLOCKING=1 to see which call; the same number on one "
    "GPU again and again is the GPU's"
)
_ADVICE_MACHINE: Final = (
    "the GPU, its link or its memory failed: see nvidia-smi -q there, drain the node, reset the "
    "GPU "
    "or reboot"
)


class OutOfMemory(msgspec.Struct, frozen=True):
    """A process was killed. `of_cgroup`: the limit of its cgroup was met, else the node's."""

    pid: int
    name: str
    resident_bytes: int
    of_cgroup: bool

    @property
    def text(self) -> str:
        had = (
            f" with {self.resident_bytes / (1 << 30):.1f} GiB resident"
            if self.resident_bytes
            else ""
        )
        where = "its cgroup's limit was met" if self.of_cgroup else "the node had no more"
        return f"the kernel killed process {self.pid} ({self.name}){had}, as {where}"


class Xid(msgspec.Struct, frozen=True):
    """An error that the NVIDIA driver wrote down; 0 for a GPU that is gone without a number."""

    number: int
    pci: str
    words: str

    @property
    def infra(self) -> bool:
        return self.number not in OF_THE_PROGRAM

    @property
    def text(self) -> str:
        name = f"Xid {self.number}" if self.number else "no Xid"
        said = f": {self.words}" if self.words else ""
        return f"the kernel says {name} of GPU {self.pci or 'unknown'}{said}"

    @property
    def advice(self) -> str:
        meaning = OF_THE_PROGRAM.get(self.number)
        return _ADVICE_MACHINE if meaning is None else _ADVICE_PROGRAM.format(meaning)


def read(lines: str) -> OutOfMemory | Xid | None:
    """What tells most of these lines: a GPU's failure before memory, the machine's before the
    program's, the first before the next."""
    memory: OutOfMemory | None = None
    xids: list[Xid] = []
    for line in lines.splitlines():
        if found := _KILLED.search(line):
            resident = sum(int(number) for number in _RESIDENT.findall(found[4])) << 10
            of_cgroup = found[1].startswith("Memory")
            memory = memory or OutOfMemory(int(found[2]), found[3], resident, of_cgroup)
        elif found := _XID.search(line):
            words = (found[3] or "").strip()[:_WORDS_CHARS_MAX]
            xids.append(Xid(int(found[2]), found[1].removeprefix("PCI:"), words))
        elif found := _OFF_THE_BUS.search(line):
            xids.append(Xid(0, (found[1] or "").rstrip(".:"), "it has fallen off the bus"))
    xids.sort(key=lambda xid: not xid.infra)
    return xids[0] if xids else memory

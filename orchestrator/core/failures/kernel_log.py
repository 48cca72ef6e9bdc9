"""Classification of kernel log lines about the end of a rank: machine or program, and advice."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.protocol.observations import kernel_log
from muster.protocol.observations.xids import HARMLESS

_WORDS_CHARS_MAX: Final = 160
_ADVICE_PROGRAM: Final = (
    "{0}: run it once with env CUDA_LAUNCH_BLOCKING=1 to see which call; the same number on one "
    "GPU again and again is the GPU's"
)
_ADVICE_MACHINE: Final = (
    "the GPU, its link or its memory failed: see nvidia-smi -q there, drain the node, reset the "
    "GPU or reboot"
)


class OutOfMemory(msgspec.Struct, frozen=True):
    """An out-of-memory kill of a process."""

    killed: kernel_log.Killed

    @property
    def text(self) -> str:
        pid, name, resident, of_cgroup = self.killed
        had = f" with {resident / (1 << 30):.1f} GiB resident" if resident else ""
        where = "its cgroup's limit was met" if of_cgroup else "the node had no more"
        return f"the kernel killed process {pid} ({name}){had}, as {where}"


class Xid(msgspec.Struct, frozen=True):
    """An error that the NVIDIA driver logged."""

    error: kernel_log.GpuError

    @property
    def infra(self) -> bool:
        return self.error.xid not in HARMLESS

    @property
    def text(self) -> str:
        xid, address, said = self.error
        name = f"Xid {xid}" if xid else "no Xid"
        words = f": {said[:_WORDS_CHARS_MAX]}" if said else ""
        return f"the kernel says {name} of GPU {address or 'unknown'}{words}"

    @property
    def advice(self) -> str:
        meaning = HARMLESS.get(self.error.xid)
        return _ADVICE_MACHINE if meaning is None else _ADVICE_PROGRAM.format(meaning)


def read(lines: str) -> OutOfMemory | Xid | None:
    """The most informative of the kernel log lines; None if none is known.

    GPU errors come before memory, machine faults before program faults, earlier lines before later
    ones.
    """
    memory: OutOfMemory | None = None
    xids: list[Xid] = []
    for line in lines.splitlines():
        match kernel_log.read(line):
            case kernel_log.Killed() as killed:
                memory = memory or OutOfMemory(killed)
            case kernel_log.GpuError() as error:
                xids.append(Xid(error))
            case None:
                pass
    xids.sort(key=lambda xid: not xid.infra)
    return xids[0] if xids else memory

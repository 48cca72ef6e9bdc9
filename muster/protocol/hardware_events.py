"""What a node's hardware has reported of itself, through its kernel: in one line for a person."""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from muster.protocol.ids import TaskId

EVENTS_MAX: Final = 64
"""So many, the last, an agent says again on each new connection."""
TEXT_MAX: Final = 300
OOM: Final = "oom"
"""The code of a kill for memory."""
XID: Final = "xid "
COUNTED: Final = "nvml "
"""How the codes begin of what befalls a GPU: by the kernel's log, and by what NVML counts."""
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Grade(enum.Enum):
    """SHOWN: no fault of the hardware by itself. NOTE: the hardware mends itself, or will want to
    be mended. CRITICAL: what runs there is lost, and nothing new is to begin."""

    SHOWN = "shown"
    NOTE = "note"
    CRITICAL = "critical"


class HardwareEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event. `number` grows throughout the boot `boot`, and is that of its record in the
    kernel's log where that is greater than the last: one that is not greater than the last that
    was heard of is no news.

    `code` tells events of one kind apart (`xid 79`). `pci` and `uuid` are the GPU's or the card's,
    "" where there is none or it is not known; `task` is whose memory ran out, `pid` the process
    that was killed. `text` is for a person and names the part.
    """

    boot: str
    number: int
    code: str
    grade: Grade
    text: str
    pci: str = ""
    uuid: str = ""
    task: TaskId | None = None
    pid: int = 0


def sound(event: HardwareEvent) -> bool:
    """Whether a coordinator can keep it and show it."""
    texts = (event.boot, event.code, event.text, event.uuid)
    return (
        event.number >= 0
        and all(len(text) <= TEXT_MAX and text.isprintable() for text in texts)
        and (not event.pci or _PCI.fullmatch(event.pci) is not None)
    )

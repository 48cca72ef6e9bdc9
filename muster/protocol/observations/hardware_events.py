"""Hardware events of a node from its kernel, each as one line of text."""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from muster.protocol.ids import TaskId

EVENTS_MAX: Final = 64
"""An agent resends this many last events on each new connection."""
TEXT_MAX: Final = 300
OOM: Final = "oom"
"""Code of a kill for lack of memory."""
XID: Final = "xid "
COUNTED: Final = "nvml "
"""Prefixes of the codes of GPU events: from the kernel's log, and from NVML's counters."""
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Grade(enum.Enum):
    """Severity. SHOWN: not a hardware fault by itself. NOTE: the hardware recovers, or will need a
    repair. CRITICAL: running jobs are lost, and no new one may start.
    """

    SHOWN = "shown"
    NOTE = "note"
    CRITICAL = "critical"


class HardwareEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hardware event. `number` increases within the boot `boot`. It is the number of the kernel
    log record if that is greater than the last one. An event with a number not above the last
    received one is old.

    `code` distinguishes events (`xid 79`). `pci` and `uuid` are those of the GPU or card, "" if
    unknown. `task` is the one that ran out of memory, `pid` the killed process. `text` is the
    message for users, and names the part.
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
    """True if a coordinator can store and show it."""
    texts = (event.boot, event.code, event.text, event.uuid)
    return (
        event.number >= 0
        and all(len(text) <= TEXT_MAX and text.isprintable() for text in texts)
        and (not event.pci or _PCI.fullmatch(event.pci) is not None)
    )

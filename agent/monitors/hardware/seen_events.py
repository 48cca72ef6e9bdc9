"""Store of reported hardware events on disk: no line is judged twice, and lines from the time
without an agent are not missed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.observations.hardware_events import EVENTS_MAX, HardwareEvent

NAME: Final = "hardware.json"

_log = structlog.get_logger("agent.hardware")


class SeenEvents(msgspec.Struct, frozen=True):
    """`seq` is the last judged record of the kernel's log in the boot `boot`. `gpus` has the UUIDs
    by address of all GPUs that this node has had, because a failed one may be missing when its Xid
    is read. `ailing` has the reported NVML counts, by UUID.
    """

    boot: str = ""
    seq: int = -1
    gpus: dict[str, str] = {}
    events: tuple[HardwareEvent, ...] = ()
    ailing: tuple[tuple[str, str], ...] = ()

    @property
    def last(self) -> int:
        """Number of the last event."""
        return self.events[-1].number if self.events else -1

    def in_boot(self, boot: str) -> SeenEvents:
        """Return the store for this boot. In another boot no line has been judged yet, because
        earlier failures may have been repaired.
        """
        if boot == self.boot:
            return self
        return msgspec.structs.replace(self, boot=boot, seq=-1, events=(), ailing=())

    def with_event(self, event: HardwareEvent) -> SeenEvents:
        return msgspec.structs.replace(self, events=(*self.events, event)[-EVENTS_MAX:])


def read(folder: Path) -> SeenEvents | None:
    """Return the stored events, or None if there are none that can be read."""
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=SeenEvents)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("ledger_not_read", path=str(path), why=str(error))
        return None


def write(folder: Path, ledger: SeenEvents) -> None:
    """Write to disk; blocks. An error is logged and otherwise ignored."""
    try:
        write_atomic(folder / NAME, msgspec.json.encode(ledger), 0o600)
    except FileError as error:
        _log.warning("ledger_not_written", why=str(error))

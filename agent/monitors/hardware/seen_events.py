"""What was reported of this node's hardware, on disk: no line is judged twice, and none that came
while no agent ran is missed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.hardware_events import EVENTS_MAX, HardwareEvent

NAME: Final = "hardware.json"

_log = structlog.get_logger("agent.hardware")


class SeenEvents(msgspec.Struct, frozen=True):
    """`seq` is the last record of the kernel's log that was judged in the boot `boot`. `gpus` are
    the UUIDs by address of all that this node has had: one that has failed may not be among its
    GPUs any more when its Xid is read. `ailing` are those of which it was told
    that NVML counts something, by UUID, each with what.
    """

    boot: str = ""
    seq: int = -1
    gpus: dict[str, str] = {}
    events: tuple[HardwareEvent, ...] = ()
    ailing: tuple[tuple[str, str], ...] = ()

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.events[-1].number if self.events else -1

    def in_boot(self, boot: str) -> SeenEvents:
        """The same in this boot of the machine, of which no line has been judged if it is another
        one: what failed before may have been mended since."""
        if boot == self.boot:
            return self
        return msgspec.structs.replace(self, boot=boot, seq=-1, events=(), ailing=())

    def with_event(self, event: HardwareEvent) -> SeenEvents:
        return msgspec.structs.replace(self, events=(*self.events, event)[-EVENTS_MAX:])


def read(folder: Path) -> SeenEvents | None:
    """What stands in the state folder; None where nothing does that can be read."""
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=SeenEvents)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("ledger_not_read", path=str(path), why=str(error))
        return None


def write(folder: Path, ledger: SeenEvents) -> None:
    """Waits for the disk. That it cannot be written is told, and hinders nothing."""
    try:
        write_atomic(folder / NAME, msgspec.json.encode(ledger), 0o600)
    except FileError as error:
        _log.warning("ledger_not_written", why=str(error))

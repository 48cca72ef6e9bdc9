"""The kernel's text formats for numbers, states, rates and GIDs. Parsers return None for other
text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agent.probe.fabric.fs_root import Unread
from muster.fabric.gids import number_of

_NUMBERED: Final = re.compile(r"([0-9]{1,4})\s*(?::\s*(.*))?")
_RATE: Final = re.compile(
    r"([0-9]{1,7}(?:\.[0-9]{1,4})?)\s*Gb/sec(?:\s*\(([0-9]{1,3})X(?:\s+(\w{1,16}))?\s*\))?",
    re.ASCII,
)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,18}")
_HEX: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,15})")
_GUID: Final = re.compile(r"[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){3}")
_STATES: Final = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYS_STATES: Final = (
    "NOP",
    "Sleep",
    "Polling",
    "Disabled",
    "PortConfigurationTraining",
    "LinkUp",
    "LinkErrorRecovery",
    "Phy Test",
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """`4: ACTIVE`: the number is authoritative, the text may be anything."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Rate:
    """`400 Gb/sec (4X NDR)`; kernels without a name for a speed leave it out."""

    gbps: float
    width: int | None
    speed: str | None


def first_line(text: str) -> str:
    """Return the first nonblank line, because some files have blank lines around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def numbered(text: str) -> Numbered | None:
    """Parse `4: ACTIVE`."""
    found = _NUMBERED.fullmatch(first_line(text))
    return Numbered(int(found[1]), (found[2] or "").strip()) if found else None


def port_state(text: str) -> str | None:
    """Return ACTIVE, DOWN...: by the number if there is one."""
    found = numbered(text)
    if found is None:
        word = first_line(text).upper()
        return word if word in _STATES else None
    return _STATES[found.number] if found.number < len(_STATES) else None


def phys_state(text: str) -> str | None:
    """Return LinkUp, Polling...: as written, else by the number."""
    found = numbered(text)
    if found is None:
        word = first_line(text)
        return word if word in _PHYS_STATES else None
    if found.text:
        return found.text[:40]
    return _PHYS_STATES[found.number] if found.number < len(_PHYS_STATES) else None


def rate(text: str) -> Rate | None:
    """Parse `400 Gb/sec (4X NDR)`."""
    found = _RATE.fullmatch(first_line(text))
    if not found:
        return None
    return Rate(float(found[1]), int(found[2]) if found[2] else None, found[3])


def link_layer(text: str) -> str | None:
    """Parse InfiniBand, Ethernet or Unknown."""
    word = first_line(text)
    return word if word in ("InfiniBand", "Ethernet", "Unknown") else None


def decimal(text: str) -> int | None:
    """Parse a decimal number of at most 18 digits."""
    line = first_line(text)
    return int(line) if _DECIMAL.fullmatch(line) else None


def counter(text: str) -> int | None:
    """Parse a counter. A port without counters has `N/A (no PMA)`."""
    line = first_line(text)
    if not re.fullmatch(r"[0-9]{1,20}", line):
        return None
    number = int(line)
    return number if number < 1 << 64 else None


def hexadecimal(text: str) -> int | None:
    """Parse 0x3a4, or the same without 0x."""
    found = _HEX.fullmatch(first_line(text))
    return int(found[1], 16) if found else None


def guid(text: str) -> str | None:
    """Parse 0002:c903:00f9:bfa0."""
    line = first_line(text)
    return line.lower() if _GUID.fullmatch(line) else None


def gid(text: str) -> str | None:
    """Parse fe80:0000:0000:0000:0002:c903:00f9:bfa1."""
    line = first_line(text)
    return line.lower() if number_of(line) is not None else None


def word(text: str) -> str | None:
    """Return one printable line of moderate length."""
    line = first_line(text)
    return line if line and len(line) <= 256 and line.isprintable() else None


def ipoib_port_guid(address: str) -> str | None:
    """Return the port GUID in an InfiniBand interface's hardware address of 20 bytes."""
    parts = address.strip().lower().split(":")
    if len(parts) != 20 or any(not re.fullmatch(r"[0-9a-f]{2}", part) for part in parts):
        return None
    last = parts[-8:]
    return ":".join(one + other for one, other in zip(last[::2], last[1::2], strict=True))


def uevent_of(text: str | Unread) -> dict[str, str]:
    """Parse KEY=value lines; an unreadable file has none."""
    return {} if isinstance(text, Unread) else uevent(text)


def uevent(text: str) -> dict[str, str]:
    """Parse KEY=value lines."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, equals, value in pairs if equals and value.isprintable()}

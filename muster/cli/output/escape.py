"""Make a program's output safe for a terminal: only colours remain active.

A user may read logs that another user's job has written. Sequences that set the title, move the
cursor, query the terminal or write the clipboard are printed as text. Line ends, tabs, carriage
returns (progress bars), colours and erasing the current line still work.
"""

from __future__ import annotations

import re
from typing import Final

RESET: Final = b"\x1b[0m"
_HELD_MAX: Final = 64
# Erase-in-line and SGR, or any single character that a terminal could act on (C0 except \b\t\n\r,
# DEL, C1), or a byte that is not UTF-8.
_SPECIAL: Final = re.compile(
    r"(\x1b\[[0-9;:]{0,48}m|\x1b\[[0-2]?K)|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff]"
)
# The beginning of a possible allowed sequence, at the end of the text.
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-9;:]{0,48})?\Z")
_UTF8_BEGUN: Final = re.compile(
    rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)


def spelled(data: bytes) -> bytes:
    """Return `data` with everything but plain text, colours and line ends spelled out (`\\x1b`)."""
    text = data.decode(errors="surrogateescape")
    return _SPECIAL.sub(_spell, text).encode()


def _spell(found: re.Match[str]) -> str:
    if found[1]:
        return found[0]
    code = ord(found[0])
    return f"\\x{code - 0xDC00 if code >= 0xDC80 else code:02x}"


class Spelling:
    """`spelled` for a stream in pieces; holds back a sequence that is split between two pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        begun = _BEGUN.search(data, max(0, len(data) - _HELD_MAX)) or _UTF8_BEGUN.search(
            data, max(0, len(data) - 3)
        )
        self._held = data[begun.start() :] if begun else b""
        return spelled(data[: len(data) - len(self._held)])

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return spelled(held)

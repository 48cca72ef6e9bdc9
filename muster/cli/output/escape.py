"""What a program wrote, made safe for a terminal: it may colour its text, and do nothing else.

A log is written by a job, and read by whoever has its number: a sequence that sets the title, moves
the cursor, answers questions or fills the clipboard is shown, not obeyed. Line ends, tabs,
carriage returns (progress bars), colours and the erasing of the current line stay as they are.
"""

from __future__ import annotations

import re
from typing import Final

RESET: Final = b"\x1b[0m"
_HELD_MAX: Final = 64
# Erase in line and SGR, or one character of all that a terminal could obey (C0 but \b\t\n\r, DEL,
# C1), or a byte that is no UTF-8.
_SPECIAL: Final = re.compile(
    r"(\x1b\[[0-9;:]{0,48}m|\x1b\[[0-2]?K)|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff]"
)
# The beginning of what may become an allowed sequence, at the end of the text.
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-9;:]{0,48})?\Z")
_UTF8_BEGUN: Final = re.compile(
    rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)


def spelled(data: bytes) -> bytes:
    """`data` with everything spelled out (`\\x1b`) that is not plain text, colour or line end."""
    text = data.decode(errors="surrogateescape")
    return _SPECIAL.sub(_spell, text).encode()


def _spell(found: re.Match[str]) -> str:
    if found[1]:
        return found[0]
    code = ord(found[0])
    return f"\\x{code - 0xDC00 if code >= 0xDC80 else code:02x}"


class Spelling:
    """`spelled` for a stream that comes in pieces: what a piece cuts in two is held back."""

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

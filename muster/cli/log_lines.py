"""Log records to the terminal: one source as its raw bytes, several as whole lines with a prefix.

Ranks write as they like: half lines, progress bars, bytes that are no text. A single source is
passed through untouched. Of several, each line is put together before it is written, so that two
ranks never share one.
"""

from __future__ import annotations

import base64
from typing import BinaryIO, Final, TypeAlias

from muster.protocol.http import LogRecord

_STDOUT: Final = "stdout"
_LINE_BYTES_MAX: Final = 64 * 1024

_Source: TypeAlias = tuple[int, str, int | None, str]


def record_bytes(record: LogRecord) -> bytes:
    """What the process wrote, byte for byte."""
    if record.data_b64 is not None:
        return base64.b64decode(record.data_b64)
    return (record.data or "").encode()


class LogPrinter:
    """Writes records to `out` and, of all streams but stdout, to `err`.

    `alone`: there is one rank only, whose bytes are passed through. `prefix`: several are told
    apart by `[node rN]` before each line. The launcher's and the set-up's own lines always have
    their `[node launcher]`.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, alone: bool, prefix: bool) -> None:
        self._out = out
        self._err = err
        self._alone = alone
        self._prefix = prefix
        self._unfinished: dict[_Source, bytes] = {}
        self._open_line: BinaryIO | None = None  # a terminal on which a line has not ended

    def write(self, record: LogRecord) -> None:
        """Write what can be written now. Raises OSError as the streams do."""
        data = record_bytes(record)
        if record.rank is not None and self._alone:
            self._send(record.stream, data)
            return
        source = (record.attempt, record.node, record.rank, record.stream)
        lines, rest = _whole_lines(self._unfinished.pop(source, b"") + data)
        if rest:
            self._unfinished[source] = rest
        if lines:
            mark = self._mark(source)
            self._send(record.stream, b"".join(mark + line for line in lines))

    def finish(self) -> None:
        """Write what never got its end of line."""
        for source, rest in self._unfinished.items():
            self._send(source[-1], self._mark(source) + rest + b"\n")
        self._unfinished.clear()
        if self._open_line is not None:
            # What we say next is not to stand in the middle of it. A file gets what was written.
            self._open_line.write(b"\n")
            self._open_line.flush()
            self._open_line = None

    def _mark(self, source: _Source) -> bytes:
        _, node, rank, stream = source
        if rank is None:
            return f"[{node} {stream}] ".encode()
        return f"[{node} r{rank}] ".encode() if self._prefix else b""

    def _send(self, stream: str, data: bytes) -> None:
        target = self._out if stream == _STDOUT else self._err
        target.write(data)
        target.flush()
        if data:
            self._open_line = None if data.endswith(b"\n") or not target.isatty() else target


def _whole_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Complete lines, each with its end, and the beginning of the next one.

    A line too long to keep is cut; it would be held back for ever otherwise.
    """
    *lines, rest = data.split(b"\n")
    whole = [line + b"\n" for line in lines]
    while len(rest) > _LINE_BYTES_MAX:
        whole.append(rest[:_LINE_BYTES_MAX] + b"\n")
        rest = rest[_LINE_BYTES_MAX:]
    return whole, rest

"""Log records on the terminal: raw bytes of a single source, prefixed lines of several.

Ranks write partial lines, progress bars and bytes that are not text. A single source is passed
through unchanged. With several sources, lines are assembled before they are written, so that two
ranks never share one. On a terminal, control sequences are spelled out.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Final, TypeAlias

from muster.cli.output.escape import RESET, Spelling, spelled
from muster.http.views import LogRecord

_STDOUT: Final = "stdout"
_NCCL: Final = "nccl"
_LINE_BYTES_MAX: Final = 64 * 1024

_Source: TypeAlias = tuple[int, str, int | None, str]


@dataclass(frozen=True, slots=True)
class LogStyle:
    """Options for printing lines. `prefix`: mark the lines of several ranks with `[node rN]`.
    `raw`: send the job's own bytes to a terminal. `grep`: skip lines that do not match."""

    prefix: bool = True
    timestamps: bool = False
    raw: bool = False
    grep: re.Pattern[str] | None = None

    @property
    def by_line(self) -> bool:
        """True if the output must be split into lines even for a single rank."""
        return self.timestamps or self.grep is not None


def record_bytes(record: LogRecord) -> bytes:
    """Return what the process wrote, byte for byte."""
    if record.data_b64 is not None:
        return base64.b64decode(record.data_b64)
    return (record.data or "").encode()


class LogPrinter:
    """Writes the records of stdout to `out`, and those of all other streams to `err`.

    `alone`: there is only one rank, whose bytes are passed through. Lines of the launcher and of
    the set-up are always prefixed, as in `[node launcher]`. `missing` is the trailer's message
    about missing bytes.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, alone: bool, look: LogStyle) -> None:
        self._out = out
        self._err = err
        self._alone = alone
        self._look = look
        # Bytes without an end of line yet, and when the first of them was read.
        self._unfinished: dict[_Source, tuple[bytes, datetime]] = {}
        self._spelling: dict[_Source, Spelling] = {}
        self._open_line: BinaryIO | None = None  # a terminal on which a line has not ended
        # the source whose last line ended with \r only
        self._updating: tuple[BinaryIO, _Source] | None = None
        self._coloured = False
        self.missing = ""

    def write(self, record: LogRecord) -> None:
        """Write the lines that are complete. Raises OSError as the streams do."""
        data = record_bytes(record)
        source = (record.attempt, record.node, record.rank, record.stream)
        if record.rank is not None and self._alone and not self._look.by_line:
            self._pass(source, data)
            return
        before, began = self._unfinished.pop(source, (b"", record.ts))
        lines, rest = _whole_lines(before + data)
        if rest:
            self._unfinished[source] = (rest, record.ts if lines else began)
        if lines:
            self._print(source, [lines[0]], began)
            self._print(source, lines[1:], record.ts)

    def finish(self) -> None:
        """Write the lines that never ended."""
        self._write_unfinished([*self._unfinished], [*self._spelling])
        if self._coloured:
            self._coloured = False
            for target in (self._out, self._err):
                if target.isatty():
                    target.write(RESET)
                    target.flush()
        self.end_line()

    def begin_attempt(self, attempt: int) -> None:
        """Write the unfinished lines of earlier attempts, which no record can complete any more."""
        self._write_unfinished(
            [source for source in self._unfinished if source[0] < attempt],
            [source for source in self._spelling if source[0] < attempt],
        )
        self.end_line()

    def end_line(self) -> None:
        """End an open line on a terminal, so that a message starts on its own line. Files get only
        what was written."""
        if self._open_line is not None:
            self._open_line.write(b"\n")
            self._open_line.flush()
            self._open_line = None

    def _write_unfinished(self, lines: list[_Source], spelled_out: list[_Source]) -> None:
        for source in lines:
            rest, began = self._unfinished.pop(source)
            self._print(source, [rest if rest.endswith(b"\r") else rest + b"\n"], began)
        for source in spelled_out:
            self._send(source, self._spelling.pop(source).finish())

    def _pass(self, source: _Source, data: bytes) -> None:
        if self._spells(source):
            data = self._spelling.setdefault(source, Spelling()).feed(data)
        self._send(source, data)

    def _print(self, source: _Source, lines: list[bytes], ts: datetime) -> None:
        look = self._look
        if look.grep is not None:
            lines = [
                x for x in lines if look.grep.search(x.rstrip(b"\r\n").decode(errors="replace"))
            ]
        if not lines:
            return
        mark = self._mark(source, ts)
        if self._spells(source):
            lines = [_closed(spelled(line)) for line in lines]
        target = self._target(source)
        if self._updating is not None and self._updating != (target, source):
            self._updating[0].write(b"\n")
        self._send(source, b"".join(mark + line for line in lines))
        self._updating = (target, source) if lines[-1].endswith(b"\r") else None

    def _mark(self, source: _Source, ts: datetime) -> bytes:
        _, node, rank, stream = source
        when = (
            f"{ts:%Y-%m-%dT%H:%M:%S}.{ts.microsecond // 1000:03d}Z "
            if self._look.timestamps
            else ""
        )
        if rank is None and stream == _NCCL and not self._look.prefix:
            # NCCL's lines name their own source.
            return when.encode()
        if rank is None:
            return f"{when}[{node} {stream}] ".encode()
        if self._alone or not self._look.prefix:
            return when.encode()
        return f"{when}[{node} r{rank}] ".encode()

    def _target(self, source: _Source) -> BinaryIO:
        return self._out if source[-1] in (_STDOUT, _NCCL) else self._err

    def _spells(self, source: _Source) -> bool:
        return not self._look.raw and self._target(source).isatty()

    def _send(self, source: _Source, data: bytes) -> None:
        if not data:
            return
        target = self._target(source)
        target.write(data)
        target.flush()
        self._coloured = self._coloured or b"\x1b[" in data
        self._open_line = None if data.endswith(b"\n") or not target.isatty() else target


def _closed(line: bytes) -> bytes:
    """Reset colours at the end of a line that used them."""
    if b"\x1b[" not in line:
        return line
    text = line.rstrip(b"\r\n")
    return text + RESET + line[len(text) :]


def _whole_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Split data into complete lines and the beginning of the next one. An update that ends with a
    carriage return counts as a line once the next byte is not a newline.

    Lines that are too long to buffer are cut, because they would be held back indefinitely.
    """
    whole = data.splitlines(keepends=True)
    rest = whole.pop() if whole and not whole[-1].endswith(b"\n") else b""
    while len(rest) > _LINE_BYTES_MAX:
        whole.append(rest[:_LINE_BYTES_MAX] + b"\n")
        rest = rest[_LINE_BYTES_MAX:]
    return whole, rest

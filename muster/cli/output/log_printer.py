"""Log records to the terminal: one source as its raw bytes, several as whole lines with a prefix.

Ranks write as they like: half lines, progress bars, bytes that are no text. A single source is
passed through untouched. Of several, each line is put together before it is written, so that two
ranks never share one. What goes to a terminal is spelled out where a terminal would obey it.
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
    """How lines are shown. `prefix`: several ranks are told apart by `[node rN]`. `raw`: a
    terminal gets the job's own bytes. `grep`: lines in which it is not found are left out.
    """

    prefix: bool = True
    timestamps: bool = False
    raw: bool = False
    grep: re.Pattern[str] | None = None

    @property
    def by_line(self) -> bool:
        """Whether even a single rank's output is to be taken apart."""
        return self.timestamps or self.grep is not None


def record_bytes(record: LogRecord) -> bytes:
    """What the process wrote, byte for byte."""
    if record.data_b64 is not None:
        return base64.b64decode(record.data_b64)
    return (record.data or "").encode()


class LogPrinter:
    """Writes records to `out` and, of all streams but stdout, to `err`.

    `alone`: there is one rank only, whose bytes are passed through. The launcher's and the set-up's
    own lines always have their `[node launcher]`. `missing` is what the trailer said of bytes that
    did not come, if it did.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, alone: bool, look: LogStyle) -> None:
        self._out = out
        self._err = err
        self._alone = alone
        self._look = look
        # What has no end of line yet, and when its first byte was read.
        self._unfinished: dict[_Source, tuple[bytes, datetime]] = {}
        self._spelling: dict[_Source, Spelling] = {}
        self._open_line: BinaryIO | None = None  # a terminal on which a line has not ended
        self._updating: tuple[BinaryIO, _Source] | None = None  # whose line has only had a \r
        self._coloured = False
        self.missing = ""

    def write(self, record: LogRecord) -> None:
        """Write what can be written now. Raises OSError as the streams do."""
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
        """Write what never got its end of line."""
        self._write_unfinished([*self._unfinished], [*self._spelling])
        if self._coloured:
            self._coloured = False
            for target in (self._out, self._err):
                if target.isatty():
                    target.write(RESET)
                    target.flush()
        self.end_line()

    def begin_attempt(self, attempt: int) -> None:
        """Write what the attempts before this one left without an end of line: none will come."""
        self._write_unfinished(
            [source for source in self._unfinished if source[0] < attempt],
            [source for source in self._spelling if source[0] < attempt],
        )
        self.end_line()

    def end_line(self) -> None:
        """What is said next is not to stand in the middle of a line. A file gets what was written
        and no more."""
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
            # Its lines say where they come from.
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
    """A line that coloured something leaves no colour behind."""
    if b"\x1b[" not in line:
        return line
    text = line.rstrip(b"\r\n")
    return text + RESET + line[len(text) :]


def _whole_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Complete lines, each with its end, and the beginning of the next one. An update that ends
    with a carriage return is a line, too, once it is seen that no newline follows.

    A line too long to keep is cut; it would be held back for ever otherwise.
    """
    whole = data.splitlines(keepends=True)
    rest = whole.pop() if whole and not whole[-1].endswith(b"\n") else b""
    while len(rest) > _LINE_BYTES_MAX:
        whole.append(rest[:_LINE_BYTES_MAX] + b"\n")
        rest = rest[_LINE_BYTES_MAX:]
    return whole, rest

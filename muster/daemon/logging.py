"""A log line per event, for our own code and for libraries that use the standard logging.

JSON for machines, columns for people. Values under a secret's name or after the word Bearer, and
the secrets of tokens, are not printed. That is a safety net: code should not log secrets in the
first place.
"""

import contextlib
import functools
import logging
import os
import re
import select
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from muster.protocol.tokens import without_secrets

Format = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]

REDACTED = "[redacted]"
WAITING_BYTES_MAX = 1 << 20
# The last word of a key decides: agent_token is a secret, token_id and token_file are not.
_SECRET_WORDS = frozenset({"token", "tokens", "secret", "secrets", "authorization", "password"})
_BEARER = re.compile(r"(?i)\b(bearer)\s+[^\s\"',;]+")


def configure(*, level: Level, fmt: Format, stream: TextIO | None = None) -> None:
    """Set up logging for this process; `auto` is console on a terminal and JSON elsewhere.

    `stream` defaults to standard error, so that standard output stays free for results. Another
    call replaces the previous set-up.
    """
    out = sys.stderr if stream is None else stream
    as_json = fmt == "json" or (fmt == "auto" and not out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer: Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer(sort_keys=False)
    else:
        # The plain formatter, because the pretty one prints local variables, tokens among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    handler = logging.StreamHandler(_Output(out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # Do not collect for each record what no line shows.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    structlog.configure(
        # Our own lines go straight out: the standard logging takes three times as long for each,
        # and a coordinator has seven for a job.
        processors=[*shared, renderer],
        logger_factory=functools.partial(_Lines, handler),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # A logger made at import must follow a later configure.
        cache_logger_on_first_use=False,
    )


class _Output:
    """A stream to which nobody waits to write: a daemon must not stop because the reader of its log
    does, such as a pipe to a program that hangs.

    Lines wait in memory until the reader goes on. Beyond `WAITING_BYTES_MAX`, they are dropped and
    counted.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting = bytearray()
        self._dropped = 0
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError, ValueError):  # not every stream is a file
            self._fd = stream.fileno()
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write text, or keep it. Raises OSError and ValueError."""
        if self._poll is None:
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(errors="backslashreplace")
        if len(self._waiting) + len(data) > WAITING_BYTES_MAX:
            self._dropped += data.count(b"\n")
        else:
            self._waiting += data
        self._write_waiting(self._poll)
        if self._dropped and not self._waiting:
            dropped, self._dropped = self._dropped, 0
            self._waiting += b'{"event":"log_lines_dropped","lines":%d}\n' % dropped
            self._write_waiting(self._poll)

    def _write_waiting(self, poll: select.poll) -> None:
        # A pipe that is ready takes that much without a pause.
        while self._waiting and poll.poll(0):
            try:
                del self._waiting[: os.write(self._fd, self._waiting[: select.PIPE_BUF])]
            except OSError:
                # It is closed, or its disk is full: these lines are lost.
                self._waiting.clear()
                raise

    def flush(self) -> None:
        """Nothing more is to be done: `write` has done what is possible now."""


class _Lines:
    """Writes the lines of one logger the way the handler writes those of libraries."""

    def __init__(self, handler: "logging.StreamHandler[_Output]", name: str = "root") -> None:
        self.name = name
        self._handler = handler

    def _write(self, line: str) -> None:
        # A closed stream or a full disk must not end a daemon.
        with (
            self._handler.lock or contextlib.nullcontext(),
            contextlib.suppress(OSError, ValueError),
        ):
            self._handler.stream.write(line + self._handler.terminator)
            self._handler.stream.flush()

    debug = info = warning = error = critical = exception = _write


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The processor that removes secrets from an event, at any depth."""
    return {key: _redacted(key, value) for key, value in event.items()}


@functools.lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    return re.split(r"[_\-.]", key.lower())[-1] in _SECRET_WORDS


def _redacted(key: str, value: object) -> object:
    if _is_secret(key):
        return REDACTED
    if isinstance(value, str):
        # Few texts contain the words, and every line of a busy coordinator passes here.
        if "muster_" in value or "mj1." in value:
            value = without_secrets(value)
        return _BEARER.sub(rf"\1 {REDACTED}", value) if "bearer" in value.lower() else value
    if isinstance(value, Mapping):
        return {str(inner): _redacted(str(inner), item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", item) for item in value]
    return value

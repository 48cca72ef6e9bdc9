"""A terminal of a chosen size, and what stands on it: enough of one to look at our output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from tests.cli.conftest import DEADLINE_S

_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`muster` on a pseudo-terminal; `raw` is all that it wrote."""

    def __init__(
        self, environ: dict[str, str], *arguments: str, width: int, height: int = 24
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(width, height)
        self.raw = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", *arguments],
            env={"TERM": "xterm-256color", **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, seen: Callable[[bytes], bool]) -> None:
        """Read until what was written satisfies `seen`."""
        deadline = time.monotonic() + DEADLINE_S
        while not seen(self.raw):
            assert time.monotonic() < deadline, self.raw[-2000:]
            if select.select([self._ours], [], [], 0.2)[0]:
                assert self._read(), self.raw[-2000:]

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{text}\n".encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)

    @property
    def lines(self) -> list[str]:
        """Return the output line by line, without its control sequences."""
        return _SEQUENCE.sub(b"", self.raw).decode().replace("\r\n", "\n").splitlines()

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data
        return bool(data)

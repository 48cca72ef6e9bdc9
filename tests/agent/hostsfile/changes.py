"""Changes of a hosts file, and others who come at the worst moment of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.hostsfile import atomic_exchange
from agent.hostsfile.editor import HostsFile
from muster.protocol.hosts_file import with_block, without_blocks
from tests.agent.hostsfile import writers

BASE = b"127.0.0.1\tlocalhost\n# mine\n\n10.0.0.7 server\r\n\xff\0 odd"
THEIRS = b"127.0.0.1 localhost\n10.9.9.9 server\n"
TABLE = (("node-a", "10.0.0.1"), ("node-b", "10.0.0.2"))


def put(text: bytes) -> bytes:
    return with_block(text, "1.1", TABLE)


def put_another(text: bytes) -> bytes:
    return with_block(text, "7.1", TABLE)


def take(text: bytes) -> bytes:
    return without_blocks(text, ())


def alone(path: Path) -> bool:
    return os.listdir(path.parent) == [path.name]


def slipping(monkeypatch: pytest.MonkeyPatch, *slips: Callable[[], None]) -> None:
    """Let each of these happen right before one exchange, the worst moment of all."""
    left = list(slips)
    real = atomic_exchange.exchange

    def exchange(one: Path, other: Path) -> None:
        if left:
            left.pop(0)()
        real(one, other)

    monkeypatch.setattr(atomic_exchange, "exchange", exchange)


def beside(file: HostsFile, path: Path, way: str, edits: int) -> None:
    """Change the file without pause while another process does."""
    with subprocess.Popen([sys.executable, writers.__file__, way, path, "0", str(edits)]) as other:
        while other.poll() is None:
            file.update(put)
            file.update(take)
        assert other.returncode == 0
    file.update(take)

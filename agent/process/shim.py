"""One connection to one shim: commands out, whole status documents in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from agent.core.shim import ShimCommand, ShimStatus
from agent.shim.record import SOCKET

# Thousands of ranks with 4 KiB of error each.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024


class ShimUnreachable(Exception):
    """Nobody answers on a task's socket: its shim has ended, or was killed."""


class ShimConnection:
    """Statuses come in the order of their truth; each replaces all before it."""

    def __init__(
        self, task_dir: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.task_dir = task_dir
        self._reader = reader
        self._writer = writer
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(ShimStatus).decode

    async def send(self, *commands: ShimCommand) -> None:
        """All at once, in order. Raises ShimUnreachable."""
        try:
            self._writer.write(b"".join(self._encode(command) + b"\n" for command in commands))
            await self._writer.drain()
        except OSError as error:
            raise ShimUnreachable(f"the shim of {self.task_dir.name} is gone: {error}") from error

    async def statuses(self) -> AsyncIterator[ShimStatus]:
        """Every document from now on; ends when the shim closes the connection, by `release` or by
        its death.
        """
        while True:
            try:
                line = await self._reader.readline()
            except OSError:
                return
            if not line.endswith(b"\n"):
                return
            yield self._decode(line)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def connect(task_dir: Path) -> ShimConnection:
    """Connect to the shim of this task. Raises ShimUnreachable."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    folder = -1
    try:
        folder = os.open(task_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # A socket's path has 107 bytes at the most, a folder's 4095.
        path = f"/proc/self/fd/{folder}/{SOCKET}"
        await asyncio.get_running_loop().sock_connect(connection, path)
        reader, writer = await asyncio.open_unix_connection(
            sock=connection, limit=DOCUMENT_BYTES_MAX
        )
    except OSError as error:
        connection.close()
        raise ShimUnreachable(f"no shim answers for {task_dir.name}: {error.strerror}") from error
    finally:
        if folder >= 0:
            os.close(folder)
    return ShimConnection(task_dir, reader, writer)

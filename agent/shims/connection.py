"""One connection to one shim: commands out, whole status documents in."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from agent.core.shim_protocol import ShimCommand, ShimStatus
from agent.shim.exit_record import SOCKET

# Thousands of ranks with 4 KiB of error each.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ShimStatus)

Heard = Callable[[ShimStatus], None]


class ShimUnreachable(Exception):
    """Nobody answers on a task's socket: its shim has ended, or was killed."""


def decode(document: bytes) -> ShimStatus:
    """Decode a status document. Raises msgspec.DecodeError."""
    return _decoder.decode(document)


class ShimConnection(asyncio.Protocol):
    """Statuses come in the order of their truth; each replaces all before it.

    `heard` is called with every document from now on. `ended` is done when the shim has closed the
    connection, by `release` or by its death; its error is a DecodeError or ValueError where the
    shim was not understood.
    """

    def __init__(self, task_dir: Path, heard: Heard) -> None:
        self.task_dir = task_dir
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = heard
        self._unread = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, *commands: ShimCommand) -> bool:
        """All at once, in order; False where the shim is gone."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(b"".join(_encode(command) + b"\n" for command in commands))
        return not self._transport.is_closing()

    def close(self) -> None:
        """Hear nothing more; safe to call twice."""
        if self._transport is not None:
            self._transport.abort()

    # --- what the loop calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        searched = len(self._unread)
        self._unread += data
        end = self._unread.rfind(b"\n", searched)
        if end < 0:
            if len(self._unread) > DOCUMENT_BYTES_MAX:
                self._fail(ValueError(f"a document of more than {DOCUMENT_BYTES_MAX} bytes"))
            return
        lines = bytes(self._unread[:end])
        del self._unread[: end + 1]
        for line in lines.split(b"\n"):
            if self.ended.done() or self._transport is None or self._transport.is_closing():
                return
            try:
                status = decode(line)
            except (msgspec.DecodeError, ValueError) as error:
                self._fail(error)
                return
            self._heard(status)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.ended.set_exception(error)
        self.close()


async def speak(task_dir: Path, connection: socket.socket, heard: Heard) -> ShimConnection:
    """Over a socket that is connected already."""
    connection.setblocking(False)
    _, protocol = await asyncio.get_running_loop().create_unix_connection(
        lambda: ShimConnection(task_dir, heard), sock=connection
    )
    return protocol


async def connect(task_dir: Path, heard: Heard) -> ShimConnection:
    """Connect to the shim of this task. Raises ShimUnreachable."""
    connection, folder = None, -1
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.setblocking(False)
        folder = os.open(task_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # A socket's path has 107 bytes at the most, a folder's 4095.
        path = f"/proc/self/fd/{folder}/{SOCKET}"
        await asyncio.get_running_loop().sock_connect(connection, path)
        return await speak(task_dir, connection, heard)
    except OSError as error:
        if connection is not None:
            connection.close()
        raise ShimUnreachable(f"no shim answers for {task_dir.name}: {error.strerror}") from error
    finally:
        if folder >= 0:
            os.close(folder)

"""Connection to one shim: sends commands, receives complete status documents."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from agent.core.shim_protocol import ShimCommand, ShimStatus, encode
from agent.shim.exit_record import SOCKET

# Thousands of ranks with 4 KiB of error text each.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024

_decoder = msgspec.json.Decoder(ShimStatus)

Heard = Callable[[ShimStatus], None]


class ShimUnreachable(Exception):
    """The task's socket does not answer: its shim has exited or was killed."""


def decode(document: bytes) -> ShimStatus:
    """Decode a status document. Raises msgspec.DecodeError."""
    return _decoder.decode(document)


class ShimConnection(asyncio.Protocol):
    """Statuses arrive in order; each replaces all earlier ones.

    `heard` is called with every document from now on. `ended` is done when the shim has closed the
    connection, after `release` or by its death. Its error is a DecodeError or ValueError if a
    document was invalid.
    """

    def __init__(self, task_dir: Path, heard: Heard) -> None:
        self.task_dir = task_dir
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = heard
        self._unread = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, *commands: ShimCommand) -> bool:
        """Send all at once, in order. Returns False if the shim has gone."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(b"".join(encode(command) + b"\n" for command in commands))
        return not self._transport.is_closing()

    def close(self) -> None:
        """Receive nothing more; safe to call twice."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the loop -----------------------------------------------------------------------

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
    """Use a connected socket."""
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
        # A socket path has at most 107 bytes, a directory path 4095.
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

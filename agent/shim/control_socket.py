"""The socket on which an agent commands a shim: JSON lines in, whole status documents out."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable

from agent.shim.status import encoded
from agent.shim.system.event_loop import Loop

# Environments are a few hundred KB at the most; an agent that sends more is broken.
LINE_BYTES_MAX = 8 * 1024 * 1024

Handle = Callable[[dict[str, object]], None]
Document = Callable[[], dict[str, object]]


class ControlClient:
    """A connection. At most one document is pending, because an older one would be outdated."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.unsent = b""
        self.writing = False  # True while the loop has to go on with the write.
        self.stale = True


class Control:
    """Serves every agent that connects (one, or two during a hand-over)."""

    def __init__(
        self, loop: Loop, listener: socket.socket, handle: Handle, document: Document
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._handle = handle
        self._document = document
        self._clients: dict[int, ControlClient] = {}
        self.on_alone: Callable[[], None] = lambda: None
        self.on_company: Callable[[], None] = lambda: None
        loop.watch(listener.fileno(), self._accept)
        loop.after_turn(self.flush)

    @property
    def alone(self) -> bool:
        return not self._clients

    def changed(self) -> None:
        """Mark the document as changed; every client gets it at the end of the turn."""
        for client in self._clients.values():
            client.stale = True

    def flush(self) -> None:
        """Send as much as possible without waiting."""
        line = b""
        for client in list(self._clients.values()):
            if client.stale and not client.unsent:
                line = line or encoded(self._document()) + b"\n"
                client.unsent = line
                client.stale = False
                self._send(client)

    def close(self) -> None:
        self._listener.close()
        for client in list(self._clients.values()):
            self._drop(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", peer)
        # The file's mode already forbids others; a folder that was opened by mistake must not undo
        # that.
        if uid not in (0, os.geteuid()):
            connection.close()
            return
        self._serve(connection)

    def take(self, connection: socket.socket) -> None:
        """Serve the agent that requested the task. It needs no first document: a new task has no
        news.
        """
        self._serve(connection).stale = False

    def _serve(self, connection: socket.socket) -> ControlClient:
        connection.setblocking(False)
        client = self._clients[connection.fileno()] = ControlClient(connection)
        self._loop.watch(connection.fileno(), lambda: self._receive(client))
        self.on_company()
        return client

    def _receive(self, client: ControlClient) -> None:
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(client.received) + len(data) > LINE_BYTES_MAX:
            self._drop(client)
            return
        *lines, client.received = (client.received + data).split(b"\n")
        for line in lines:
            try:
                command = json.loads(line.decode())
            except ValueError:
                self._drop(client)
                return
            if isinstance(command, dict):
                self._handle(command)

    def _send(self, client: ControlClient) -> None:
        try:
            client.unsent = client.unsent[client.connection.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if bool(client.unsent) is client.writing:
            return
        client.writing = not client.writing
        writing = (lambda: self._send(client)) if client.writing else None
        self._loop.watch(client.connection.fileno(), lambda: self._receive(client), writing)

    def _drop(self, client: ControlClient) -> None:
        fd = client.connection.fileno()
        if self._clients.pop(fd, None) is None:
            return
        self._loop.forget(fd)
        client.connection.close()
        if not self._clients:
            self.on_alone()

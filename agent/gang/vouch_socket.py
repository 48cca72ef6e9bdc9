"""The UDP socket at which an agent asks the agents of its gangs for vouches, and answers theirs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.core.effects import Question
from agent.core.inputs import VouchReceived
from agent.core.state import State
from agent.core.vouching import DATAGRAM_BYTES_MAX, answer, vouched
from agent.probe.udp_port import EFFECT, FIX, named, owners
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError

BATCH: Final = 64
"""Datagrams that are read at once. Then the socket waits, so that a flood costs little."""
PAUSE_S: Final = 0.01
_PORT: Final = "peer_port"

_log = structlog.get_logger("agent.vouches")


def open_socket(wanted: int, state_dir: Path, *, shared: bool) -> socket.socket | None:
    """Open the socket at the port of an earlier agent process, else at `wanted`, else, on a host
    that agents share, at any port. Returns None if all are taken."""
    path = state_dir / _PORT
    ports = [wanted, 0] if shared else [wanted]
    with contextlib.suppress(OSError, ValueError):
        ports.insert(0, int(path.read_text()))
    for port in ports:
        found = _bound(port)
        if found is None:
            continue
        try:
            write_atomic(path, f"{found.getsockname()[1]}\n".encode(), 0o600)
        except FileError as error:
            _log.warning("peer_port_not_kept", why=str(error))
        return found
    users = named(owners(wanted))
    _log.warning(
        "no_peer_port",
        why=f"UDP port {wanted} is taken{users and ' by a program of '}{users}: {EFFECT}; {FIX}",
    )
    return None


def _bound(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind((address, port))
        except OSError:
            made.close()
            continue
        return made
    return None


class VouchSocket:
    """Carries out AskMembers, answers questions from the state, and posts answers."""

    def __init__(
        self, sock: socket.socket | None, state: State, post: Callable[[VouchReceived], None]
    ) -> None:
        """Needs a running event loop. Without a socket, it does nothing."""
        self._socket = sock
        self._state = state
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._resume()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def ask(self, questions: tuple[Question, ...]) -> None:
        """Send questions. One that cannot be sent now is asked again later."""
        for one in questions:
            wide = self._socket is not None and self._socket.family == socket.AF_INET6
            mapped = wide and ":" not in one.address
            address = f"::ffff:{one.address}" if mapped else one.address
            self._send(one.data, (address, one.port))

    def _send(self, data: bytes, address: tuple[object, ...]) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(data, address)

    def _read(self) -> None:
        sock = self._socket
        if sock is None:
            return
        for _ in range(BATCH):
            try:
                data, address = sock.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return
            except OSError:
                continue  # an earlier datagram could not be delivered
            self._take(data, address)
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._read)

    def _take(self, data: bytes, address: tuple[object, ...]) -> None:
        answered = answer(self._state, data)
        if answered is not None:
            self._send(answered, address)
            return
        received = vouched(self._state, data)
        if received is not None:
            self._post(received)

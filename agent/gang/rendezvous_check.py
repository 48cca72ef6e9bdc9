"""Rendezvous check of a gang: the launcher's agent listens in the launcher's place; every other
node's agent connects and reads the greeting.

An open port is not enough: another job's launcher may listen there, or another machine may have the
address. The agent holds the port until the gate opens, so that no other program takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from typing import Final

import structlog

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Refusal, RendezvousCheck
from muster.protocol.refusal_codes import RefusalCode

_PAUSE_FIRST_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05
_GREETING: Final = "muster"
_GREETING_BYTES_MAX: Final = 256
_PEERS_MAX: Final = 16_384
# Closing with this option leaves no TIME_WAIT where the program is about to listen.
_ABORT: Final = struct.pack("ii", 1, 0)

_log = structlog.get_logger("agent.gang.rendezvous_check")


class RendezvousChecks:
    """The ports that this node's agent holds for future launchers. Needs a running event loop."""

    def __init__(self) -> None:
        self._held: dict[TaskId, _Held] = {}

    async def prove(self, task: TaskId, check: RendezvousCheck) -> Refusal | None:
        """Hold the port, or connect to the agent that does. Returns None on success."""
        if check.launcher == task:
            return self._hold(task, check.port)
        return await _reach(check)

    def let_go(self, task: TaskId) -> None:
        """Free the port before returning. Harmless if none is held."""
        held = self._held.pop(task, None)
        if held is not None:
            held.close()

    def _hold(self, task: TaskId, port: int) -> Refusal | None:
        self.let_go(task)
        try:
            sock = listener(port)
        except OSError as error:
            why = (
                "was free, but another program has taken it since"
                if error.errno == errno.EADDRINUSE
                else f"cannot be listened on: {error.strerror}"
            )
            return Refusal(RefusalCode.PORT_TAKEN, f"port {port} {why}")
        self._held[task] = _Held(task, sock)
        return None


class _Held:
    """A held port and its connections. Uses plain sockets, because their close takes effect at
    once."""

    def __init__(self, task: TaskId, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._greeting = f"{_GREETING} {task}\n".encode()
        self._listener = sock
        self._peers: set[socket.socket] = set()
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for peer in list(self._peers):
            self._part(peer)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            if len(self._peers) == _PEERS_MAX:
                self._part(next(iter(self._peers)))
            self._peers.add(peer)
            # Let the peer close first: the side that closes first keeps the port busy for a minute.
            self._loop.add_reader(peer, self._part, peer)
            with contextlib.suppress(OSError):
                peer.send(self._greeting)

    def _part(self, peer: socket.socket) -> None:
        self._loop.remove_reader(peer)
        self._peers.discard(peer)
        peer.close()


def listener(port: int) -> socket.socket:
    """Listen as torch does: on every address of both families. Raises OSError."""
    try:
        return _listener(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
            raise
    return _listener(socket.AF_INET, "0.0.0.0", port)  # noqa: S104


def _listener(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Accepted connections inherit this option, so that the program can bind beside their
        # remains.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(1024)
    except BaseException:
        sock.close()
        raise
    return sock


async def _reach(check: RendezvousCheck) -> Refusal | None:
    """Connect until the launcher's agent answers: it may start a little later than this one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + check.timeout_s
    pause_s = _PAUSE_FIRST_S
    why: str | None = None
    while True:
        try:
            why = await _try(check, deadline)
        except TimeoutError as late:
            # The error of an earlier attempt explains more than the timeout of this one.
            why = why or str(late)
            break
        if why is None:
            return None
        if loop.time() + pause_s >= deadline:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    text = (
        f"{check.node} is not reached at {check.address} port {check.port}: {why}; let the "
        "nodes connect to each other on the ports of jobs, or name another network in `networks` "
        "of the coordinator's configuration"
    )
    _log.warning("launcher_unreachable", launcher=check.launcher, why=why)
    return Refusal(RefusalCode.UNREACHABLE, text, node_fault=True)


async def _try(check: RendezvousCheck, deadline: float) -> str | None:
    """The problem, as part of a sentence. Returns None if the right agent has answered. Raises
    TimeoutError with a similar text."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in check.address else socket.AF_INET
    connected = False
    kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        with socket.socket(family, kind) as sock:
            async with asyncio.timeout_at(deadline):
                if check.source:
                    sock.bind((check.source, 0))
                await loop.sock_connect(sock, (check.address, check.port))
                connected = True
                answer = await _answer(sock)
    except TimeoutError:
        raise TimeoutError(_silent(check, connected=connected)) from None
    except OSError as error:
        return _connect_error(error, check)
    if answer == f"{_GREETING} {check.launcher}":
        return None
    known = answer.partition(" ")
    if known[0] == _GREETING:
        return f"the launcher of another task ({known[2]!r}) answers there"
    return "another program answers there" if answer else "the connection is closed at once"


async def _answer(sock: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    data = b""
    while b"\n" not in data and len(data) < _GREETING_BYTES_MAX:
        more = await loop.sock_recv(sock, _GREETING_BYTES_MAX)
        if not more:
            break
        data += more
    return data.partition(b"\n")[0].decode(errors="replace")


def _silent(check: RendezvousCheck, *, connected: bool) -> str:
    if connected:
        return f"another program listens there, which sends nothing within {check.timeout_s:g} s"
    return f"no answer in {check.timeout_s:g} s (does a firewall drop the packets?)"


def _connect_error(error: OSError, check: RendezvousCheck) -> str:
    match error.errno:
        case errno.ECONNREFUSED:
            return "the connection is refused (does a firewall reject it?)"
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            return f"{os.strerror(error.errno).lower()}"
        case errno.EACCES | errno.EPERM:
            return "a rule of this node forbids the connection"
        case errno.EADDRNOTAVAIL:
            return f"this node no longer has its address {check.source}"
        case _:
            return (error.strerror or str(error)).lower()

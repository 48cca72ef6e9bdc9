"""Sockets, and JSON messages over them, one per line."""

from __future__ import annotations

import errno
import json
import socket
import sys
import time
from typing import Any, Dict, List, Tuple

LINE_BYTES_MAX = 1 << 22
HELLO_S = 60.0
STALL_S = 5.0

Message = Dict[str, Any]
Result = List[Any]  # sender, receiver, network (indices), GB/s or None, why not


def listen(address: str, port: int) -> socket.socket:
    """Listen on one address, or on all addresses of both families."""
    family = family_of(address) if address else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not address and sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(1024)
    return sock


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def fill(sock: socket.socket, data: bytearray) -> None:
    view = memoryview(data)
    got = 0
    while got < len(view):
        more = sock.recv_into(view[got:])
        if not more:
            raise ConnectionResetError
        got += more


def line_of(sock: socket.socket) -> bytes:
    """Read one line, and no byte beyond it."""
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < 4096:
        more = sock.recv(1)
        if not more:
            break
        data += more
    return bytes(data)


def send(sock: socket.socket, message: Message) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")


def in_words(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.ECONNREFUSED:
        return "the connection is refused (does a firewall reject it?)"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "the connection is cut"
    return (getattr(error, "strerror", "") or str(error) or type(error).__name__).lower()


def connect_patiently(address: Tuple[str, int]) -> socket.socket:
    """Connect to the hub, retrying because its process may start a little later."""
    until = time.monotonic() + HELLO_S
    while True:
        try:
            sock = socket.create_connection(address, timeout=STALL_S)
            sock.settimeout(None)
            return sock
        except OSError as error:
            if time.monotonic() > until:
                sys.exit("the first node of the check is not reached: %s" % in_words(error))
            time.sleep(0.05)

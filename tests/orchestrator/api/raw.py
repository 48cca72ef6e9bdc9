"""Bytes to a coordinator as they are, and what comes back."""

import socket
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.orchestrator.process import CoordinatorProcess

DEADLINE_S = 180.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"].startswith("application/problem+json"), self
        found: dict[str, Any] = msgspec.json.decode(self.body)
        assert found["request_id"] == self.headers["x-request-id"]
        assert found["status"] == self.status
        return found


def dial(coordinator: CoordinatorProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", coordinator.port), DEADLINE_S)


def head(coordinator: CoordinatorProcess, line: str, *headers: str) -> bytes:
    """A request's head: with a host and a good token, unless `headers` have their own."""
    names = {header.partition(":")[0].lower() for header in headers}
    given = list(headers)
    if "host" not in names:
        given.append(f"Host: 127.0.0.1:{coordinator.port}")
    if "authorization" not in names:
        given.append(f"Authorization: Bearer {coordinator.admin}")
    return "\r\n".join([line, *given, "", ""]).encode()


def until_closed(connection: socket.socket) -> bytes:
    """Everything that comes until the other side closes."""
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def read_answer(connection: socket.socket) -> Answer:
    """Read one answer with a Content-Length; the connection may go on."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    line, *lines = top.decode("latin-1").split("\r\n")
    pairs = (text.partition(": ") for text in lines)
    headers = {name.lower(): value for name, _, value in pairs}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        more = connection.recv(65536)
        assert more, f"closed after {data!r}"
        body += more
    return Answer(int(line.split()[1]), headers, body)


def ask(coordinator: CoordinatorProcess, data: bytes) -> Answer:
    with dial(coordinator) as connection:
        connection.sendall(data)
        return read_answer(connection)

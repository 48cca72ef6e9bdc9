"""A webhook server that keeps every message, and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEADLINE_S = 180.0


@dataclass(frozen=True)
class Delivery:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """`answers` are the codes of the next answers, then 204; all is guarded by `changed`."""

    port: int = 0
    got: list[Delivery] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def await_deliveries(self, number: int) -> list[Delivery]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= number, DEADLINE_S), self.got
            return list(self.got)


@contextmanager
def listening(receiver: Receiver) -> Iterator[Receiver]:
    """Answer on the receiver's port, the same one again after the first time."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.changed:
                receiver.got.append(Delivery(self.path, dict(self.headers), body))
                code = receiver.answers.pop(0) if receiver.answers else 204
                receiver.changed.notify_all()
            self.send_response(code)
            if 300 <= code < 400:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", receiver.port), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

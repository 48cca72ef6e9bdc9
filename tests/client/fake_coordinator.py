"""A coordinator as the client sees one: a real HTTP server, in a thread, over a script.

It can go away with all of its connections and come back on the same port, cut a log stream after
any record, and refuse tokens. What it answers are the API's own types.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from muster.bundle.pack import unpack
from muster.http import job_actions as verbs
from muster.http import views as api
from muster.http.bundles import BundleView, MissingAnswer, PackAnswer
from muster.http.fabric import FabricView
from muster.protocol.states import ENDED_STATES, JobState
from muster.protocol.timestamp import timestamp

TOKEN: Final = "muster_admin_tester_" + "s" * 43
DEADLINE_S: Final = 180.0
SERVER_TIME_S: Final = 1_700_000_123  # what its clock says


def job_view(job: int = 42, **changes: Any) -> api.JobView:
    """A job that runs on two nodes, as changed."""
    view = api.JobView(
        id=job,
        name="train",
        user="alice",
        state=JobState.RUNNING,
        reason=api.Reason("running", "2 nodes run"),
        nodes=2,
        pool="default",
        priority=50,
        attempt=1,
        submitted_at=timestamp(1_700_000_000),
        started_at=timestamp(1_700_000_003),
        ended_at=None,
        exit_code=None,
        spec={"run": ["train.py"]},
        attempts=(),
        timeline=(),
    )
    return msgspec.structs.replace(view, **changes)


def ended(view: api.JobView, state: JobState, exit_code: int, text: str = "") -> api.JobView:
    return msgspec.structs.replace(
        view,
        state=state,
        exit_code=exit_code,
        ended_at=view.submitted_at + timedelta(seconds=60),
        reason=api.Reason(state.value.lower(), text),
    )


def record(
    number: int,
    data: str | bytes,
    rank: int | None = 0,
    stream: str = "stdout",
    node: str = "gpu-01",
) -> api.LogRecord:
    """Record `number` of the merged log, which is also its cursor."""
    raw = data.encode() if isinstance(data, str) else data
    text = data if isinstance(data, str) else None
    blob = None if text is not None else msgspec.to_builtins(raw)
    return api.LogRecord(1, node, rank, stream, 0, len(raw), timestamp(1), str(number), text, blob)


@dataclass
class Script:
    """State of the fake coordinator, and its planned misbehaviour. Guarded by `changed`."""

    jobs: dict[int, api.JobView] = field(default_factory=dict)
    fabrics: dict[int, FabricView] = field(default_factory=dict)
    nodes: tuple[api.NodeView, ...] = ()
    nodes_a_page: int = 1000
    coordinator_warnings: tuple[str, ...] = ()
    environments: dict[int, api.EnvironmentView] = field(default_factory=dict)
    events: tuple[api.EventView, ...] = ()
    validation: api.Validation | None = None
    logs: list[api.LogRecord] = field(default_factory=list)
    # The text about undelivered bytes in the trailer of the logs.
    undelivered: str = ""
    # For each connection to the logs in turn, after how many records it is cut; then never.
    cuts: list[int] = field(default_factory=list)
    # Like `cuts`, but the stream ends with the trailer of a coordinator that restarts.
    restarts: list[int] = field(default_factory=list)
    # Answers given before anything else happens: (status, body, content type).
    first_answers: list[tuple[int, bytes, str]] = field(default_factory=list)
    # Number of the next answers that are cut in the middle of their body.
    halves: int = 0
    version: api.VersionView | None = None
    # Code that was sent: manifests and chunks by their SHA-256.
    bundles: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, bytes] = field(default_factory=dict)
    # Uploads that are refused because the user's code has reached its limit: their first path.
    full: str | None = None
    submitted: dict[str, Any] = field(default_factory=dict)
    # The job that a rerun of any other makes.
    rerun: int | None = None
    cancelled: list[tuple[int, verbs.CancelRequest]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)


class FakeCoordinator:
    """Listens from `start` to `stop`; always on the port of its first start."""

    def __init__(self, script: Script | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.script = script or Script()
        self.port = 0
        self._tls = tls
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        server = _Server(("127.0.0.1", self.port), self.script)
        self.port = server.server_address[1]
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        self._server = server
        threading.Thread(
            target=server.serve_forever, args=(0.01,), name="coordinator", daemon=True
        ).start()

    def stop(self) -> None:
        """Go away at once, as a killed process does."""
        server, self._server = self._server, None
        if server is not None:
            server.gone = True
            server.shutdown()
            server.server_close()
            server.cut_connections()
            with self.script.changed:
                self.script.changed.notify_all()

    def put(self, view: api.JobView) -> None:
        with self.script.changed:
            self.script.jobs[view.id] = view
            self.script.changed.notify_all()

    def log(self, *records: api.LogRecord) -> None:
        with self.script.changed:
            self.script.logs.extend(records)
            self.script.changed.notify_all()

    def happened(self, *events: api.EventView) -> None:
        with self.script.changed:
            self.script.events += events
            self.script.changed.notify_all()

    def wait_for_request(self, part: str, count: int = 1) -> None:
        """Until `count` requests whose line contains `part` have come."""
        with self.script.changed:
            came = self.script.changed.wait_for(
                lambda: sum(part in line for line in self.script.requests) >= count, DEADLINE_S
            )
        assert came, f"no {part!r} among {self.script.requests}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], script: Script) -> None:
        super().__init__(address, _Handler)
        self.script = script
        self.gone = False
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        script = self.server.script
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with script.changed:
            script.requests.append(f"{method} {self.path}")
            script.changed.notify_all()
            answer = script.first_answers.pop(0) if script.first_answers else None
        if answer is not None:
            self._raw(*answer)
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._refuse(401, "unauthorized", "the token is missing or wrong")
        else:
            self._route(method, url.path.removeprefix("/v1/").split("/"))

    def _route(self, method: str, path: list[str]) -> None:
        script = self.server.script
        match method, path:
            case "POST", ["jobs"]:
                self._submit()
            case "GET", ["jobs"]:
                self._list()
            case "POST", ["jobs:validate"] if script.validation is not None:
                self._reply(script.validation)
            case "GET", ["jobs", number, *_] if int(number) not in script.jobs:
                self._refuse(404, "unknown_job", f"there is no job {number}")
            case "GET", ["jobs", number]:
                self._reply(script.jobs[int(number)])
            case "GET", ["jobs", number, "fabric"] if int(number) in script.fabrics:
                self._reply(script.fabrics[int(number)])
            case "GET", ["jobs", number, "env"]:
                self._reply(script.environments[int(number)])
            case "GET", ["jobs", number, "wait"]:
                self._wait(int(number))
            case "GET", ["jobs", number, "events"] if "follow" in self.query:
                self._follow_events(int(number))
            case "GET", ["jobs", _, "events"]:
                after = int(self.query.get("after", 0))
                self._reply(api.EventList(tuple(e for e in script.events if e.seq > after)))
            case "GET", ["jobs", number, "logs"]:
                self._logs(int(number))
            case "POST", ["jobs", number, "cancel"]:
                self._cancel(int(number))
            case "POST", ["jobs", _, "rerun"] if script.rerun is not None:
                self._reply(script.jobs[script.rerun], 201)
            case "GET", ["nodes"]:
                self._nodes()
            case "GET", ["bundles", sha256] if sha256 not in script.bundles:
                self._refuse(404, "unknown_bundle", f"there is no bundle {sha256}")
            case "GET", ["bundles", sha256]:
                self._reply(BundleView(sha256, 0, len(script.bundles[sha256])))
            case "PUT" | "POST", [first, *_] if first == script.full:
                self._refuse(413, "too_much_code", "the code of alice has reached 9 bytes")
            case "PUT", ["bundles", sha256]:
                script.bundles[sha256] = self.body
                self._reply(BundleView(sha256, 0, len(self.body)), 201)
            case "POST", ["blobs:missing"]:
                wanted = json.loads(self.body)["chunks"]
                self._reply(MissingAnswer(tuple(c for c in wanted if c not in script.chunks)))
            case "POST", ["blobs"]:
                sent = {chunk: bytes(content) for chunk, content in unpack(self.body)}
                script.chunks.update(sent)
                self._reply(PackAnswer(len(sent)), 201)
            case "GET", ["version"] if script.version is not None:
                self._reply(script.version)
            case "GET", ["version"]:
                self._reply(api.VersionView("0.1.0", 1, 1, 7, "alice", "admin"))
            case _:
                self._refuse(404, "no_such_route", f"there is nothing at {self.path}")

    def _submit(self) -> None:
        script = self.server.script
        key = self.headers["Idempotency-Key"]
        mapping = json.loads(self.body)
        if mapping.get("nodes") == "4096":
            self._refuse(422, "unsatisfiable", "job 'train' cannot start: it needs 4096 nodes")
            return
        if mapping.get("pool") == "nowhere":
            problem = api.FieldProblem("pool", "nowhere", "there is no such pool", "try default")
            self._refuse(422, "bad_job", "the job is bad", (problem,))
            return
        with script.changed:
            if key not in script.submitted:
                number = 42 + len(script.submitted)
                script.submitted[key] = (number, mapping)
                script.jobs.setdefault(number, job_view(number, state=JobState.QUEUED))
            view = script.jobs[script.submitted[key][0]]
        self._reply(view, 201)

    def _list(self) -> None:
        states = self.query.get("state", "").split(",")
        found = [
            job
            for _, job in sorted(self.server.script.jobs.items(), reverse=True)
            if (states == [""] or job.state.value in states)
            and self.query.get("user") in {None, job.user}
            and self.query.get("pool") in {None, job.pool}
            and self.query.get("name") in {None, job.name}
            and job.id < int(self.query.get("cursor", 10**9))
        ]
        limit = int(self.query.get("limit", 100))
        cursor = str(found[limit - 1].id) if len(found) > limit else None
        self._reply(api.JobList(tuple(found[:limit]), cursor))

    def _nodes(self) -> None:
        nodes, size = self.server.script.nodes, self.server.script.nodes_a_page
        begin = int(self.query.get("cursor", 0))
        cursor = str(begin + size) if len(nodes) > begin + size else None
        warnings = self.server.script.coordinator_warnings
        self._reply(api.NodeList(nodes[begin : begin + size], cursor, warnings=warnings))

    def _wait(self, number: int) -> None:
        script = self.server.script
        with script.changed:
            script.changed.wait_for(
                lambda: self.server.gone or script.jobs[number].state in ENDED_STATES,
                float(self.query["timeout_s"]),
            )
        if self.server.gone:
            self.close_connection = True
            return
        self._reply(script.jobs[number])

    def _cancel(self, number: int) -> None:
        script = self.server.script
        view = script.jobs[number]
        over = view.state in ENDED_STATES
        with script.changed:
            script.cancelled.append(
                (number, msgspec.json.decode(self.body, type=verbs.CancelRequest))
            )
            if not over:
                script.jobs[number] = msgspec.structs.replace(view, state=JobState.STOPPING)
            script.changed.notify_all()
        self._reply(verbs.CancelAnswer(script.jobs[number], over), 202)

    def _logs(self, number: int) -> None:
        script = self.server.script
        with script.changed:
            cut = script.cuts.pop(0) if script.cuts else None
            restart = script.restarts.pop(0) if script.restarts else None
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        cursor = self.query.get("cursor", "0")
        for sent, entry in enumerate(self._entries(number)):
            if cut == sent:
                self._write_chunk(msgspec.json.encode(entry)[:7])  # half a line
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if restart == sent:
                self._end(api.LogTrailer(end=False, reason="restarting", cursor=cursor))
                return
            self._write_chunk(msgspec.json.encode(entry) + b"\n")
            cursor = entry.cursor or cursor
        job = script.jobs[number]
        over = job.state in ENDED_STATES
        if not self.server.gone:
            reason = script.undelivered or None
            self._end(api.LogTrailer(over, job.state.value, job.exit_code, reason, cursor))

    def _follow_events(self, number: int) -> None:
        """Send the existing events, then new ones as they come, until the job has ended."""
        script = self.server.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        after = int(self.query["after"])
        while True:
            with script.changed:
                fresh = [event for event in script.events if event.seq > after]
                over = script.jobs[number].state in ENDED_STATES
                if not fresh and not over and not self.server.gone:
                    script.changed.wait(DEADLINE_S)
                    continue
            for event in fresh:
                after = event.seq
                data = msgspec.json.encode(event)
                self._write_chunk(b"id: %d\nevent: x\ndata: %s\n\n" % (event.seq, data))
            if over or self.server.gone:
                break
        if not self.server.gone:
            end = msgspec.json.encode(api.EventsEnd(final=True))
            self._write_chunk(b"event: end\ndata: %s\n\n" % end)
            self.wfile.write(b"0\r\n\r\n")

    def _entries(self, number: int) -> Iterator[api.LogRecord]:
        """Yield the entries that the query asks for; with `follow`, also new ones until the job
        ends."""
        script = self.server.script
        after = int(self.query.get("cursor", 0))
        if "tail" in self.query:
            lines = int(self.query["tail"])
            after = int(script.logs[-lines - 1].cursor or 0) if len(script.logs) > lines else 0
        while True:
            with script.changed:
                fresh = [entry for entry in script.logs if int(entry.cursor) > after]
                over = script.jobs[number].state in ENDED_STATES or "follow" not in self.query
                if not fresh and (over or self.server.gone):
                    return
                if not fresh:
                    script.changed.wait(DEADLINE_S)
                    continue
            for entry in fresh:
                after = int(entry.cursor)
                if self._matches(entry):
                    yield entry

    def _matches(self, entry: api.LogRecord) -> bool:
        wanted = self.query
        return (
            wanted.get("rank") in {None, str(entry.rank)}
            and wanted.get("node") in {None, entry.node}
            and entry.stream in (wanted.get("stream") or entry.stream).split(",")
        )

    def _end(self, trailer: api.LogTrailer) -> None:
        self._write_chunk(msgspec.json.encode(trailer) + b"\n")
        self.wfile.write(b"0\r\n\r\n")

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _refuse(
        self, status: int, code: str, detail: str, problems: tuple[api.FieldProblem, ...] = ()
    ) -> None:
        problem = api.Problem("about:blank", code, status, code, detail, "", "r-1", problems)
        self._raw(status, msgspec.json.encode(problem), "application/problem+json")

    def _reply(self, body: msgspec.Struct, status: int = 200) -> None:
        self._raw(status, msgspec.json.encode(body), "application/json")

    def _raw(self, status: int, body: bytes, kind: str) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(SERVER_TIME_S, usegmt=True))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with self.server.script.changed:
            whole = self.server.script.halves <= 0
            self.server.script.halves -= 1
        self.wfile.write(body if whole else body[: len(body) // 2])
        self.close_connection = self.close_connection or not whole


@contextlib.contextmanager
def running(
    script: Script | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[FakeCoordinator]:
    """A coordinator for the length of a test."""
    fake = FakeCoordinator(script, tls)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()

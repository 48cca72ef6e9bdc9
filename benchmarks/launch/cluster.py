"""A temporary cluster to measure, with an open connection; cleans up completely."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from examples.local_cluster import LocalCluster
from muster.client import load_settings
from muster.protocol.states import ENDED_STATES

_ENDED = {state.value for state in ENDED_STATES}
_WAIT_S = 60.0
_TIDY_S = 10.0


class Wrong(Exception):
    """A precondition of the benchmark failed; the message names it."""


@contextlib.contextmanager
def cluster(
    agents: int, make: Callable[[Path, int], LocalCluster] = LocalCluster
) -> Iterator[LocalCluster]:
    """Yield a started cluster. At the end, no job, shim, daemon or directory is left."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        local = make(Path(folder), agents)
        try:
            with local:
                try:
                    yield local
                finally:
                    _end_jobs(local)
        finally:
            _end_shims(local)


class Connection:
    """A client's connection to the coordinator that stays open."""

    def __init__(self, local: LocalCluster) -> None:
        settings = load_settings(local.base_env())
        self._http = http.client.HTTPConnection("127.0.0.1", local.port, timeout=_WAIT_S)
        self._headers = {
            "Authorization": f"Bearer {settings.token}",
            "Content-Type": "application/json",
        }

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Send one request and return its answer as plain values. Raises Wrong."""
        self._http.request(method, path, body, self._headers)
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise Wrong(f"{method} {path}: {answer.status} {data.decode(errors='replace')}")
        return json.loads(data)

    def submit(self, body: bytes) -> int:
        number: int = self.call("POST", "/v1/jobs", body)["id"]
        return number

    def wait(self, job: int) -> None:
        """Wait until the job has succeeded. Raises Wrong."""
        ended = self.call("GET", f"/v1/jobs/{job}/wait?timeout_s={_WAIT_S:g}")
        if ended["state"] != "SUCCEEDED":
            raise Wrong(f"job {job} is {ended['state']}: {ended['reason']}")

    def events(self, job: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/v1/jobs/{job}/events")["events"]
        return found

    def close(self) -> None:
        self._http.close()


def job_of(**keys: object) -> bytes:
    """Return the body of a submit."""
    return json.dumps({"name": "bench", "workdir": "/tmp", **keys}).encode()  # noqa: S108


def settle(local: LocalCluster) -> None:
    """Wait until the nodes have cleaned up after earlier jobs, which is not measured."""
    deadline = time.monotonic() + _TIDY_S
    while any(_task_folders(local)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _task_folders(local: LocalCluster) -> Iterator[Path]:
    for name in local.nodes:
        yield from (local.root / "state" / name / "tasks").glob("*")


def _end_jobs(local: LocalCluster) -> None:
    """No part of a job may outlive the benchmark, however it ends."""
    with contextlib.suppress(OSError, http.client.HTTPException, Wrong):
        connection = Connection(local)
        jobs = connection.call("GET", "/v1/jobs?limit=1000")["jobs"]
        for job in [job["id"] for job in jobs if job["state"] not in _ENDED]:
            body = json.dumps({"force": True, "reason": "the benchmark ends"}).encode()
            connection.call("POST", f"/v1/jobs/{job}/cancel", body)
            connection.call("GET", f"/v1/jobs/{job}/wait?timeout_s=10")
        connection.close()
        settle(local)


def _end_shims(local: LocalCluster) -> None:
    for folder in _task_folders(local):
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((folder / "shim.json").read_text())["pid"])
            if Path(f"/proc/{pid}/comm").read_text().startswith("muster-shim"):
                os.kill(pid, signal.SIGKILL)

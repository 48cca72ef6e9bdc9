"""A minimal follower of a job's logs, so that its own cost does not affect the measurement."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from benchmarks.launch.cluster import Wrong
from examples.local_cluster import LocalCluster
from muster.client import load_settings

_TIMEOUT_S = 120.0


class Follower:
    """Calls `took` with each piece of a job's raw log, in a separate thread."""

    def __init__(self, local: LocalCluster, job: int, took: Callable[[bytes], None]) -> None:
        settings = load_settings(local.base_env())
        self._http = http.client.HTTPConnection("127.0.0.1", local.port, timeout=_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {settings.token}"}
        self._http.request("GET", f"/v1/jobs/{job}/logs?follow=1&format=text", headers=headers)
        self._answer = self._http.getresponse()
        if self._answer.status != 200:
            raise Wrong(f"logs of job {job}: {self._answer.status}")
        self._took = took
        self._thread = threading.Thread(target=self._read, name=f"follow {job}", daemon=True)

    def _read(self) -> None:
        while data := self._answer.read1(1 << 20):
            self._took(data)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._thread.join(_TIMEOUT_S)
        self._http.close()

"""Users who want more than their share of the API: each takes what it may, for a few seconds."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from examples.namespace_cluster import NamespaceCluster
from muster.client import ClientError, load_settings
from muster.client.config import Settings

CLIENTS = 8
SLOW_READERS = 100
BIG_ENV = 2000
HUGE = ("1e300", "8e115", "1e9", "86400", "-1", "nan")


def submits(cluster: NamespaceCluster, number: int) -> list[int]:
    """So many, several at once; their jobs."""
    client = cluster.client()
    spec = {"name": "greed", "launcher": "none", "run": ["true"], "priority": 0}
    made: list[int] = []

    def some() -> None:
        for _ in range(number // CLIENTS):
            with contextlib.suppress(ClientError):
                made.append(client.submit(spec).id)

    _at_once([some] * CLIENTS)
    return made


def cancels(cluster: NamespaceCluster, jobs: list[int]) -> None:
    """All of them, several at once."""
    client = cluster.client()
    left = list(jobs)

    def some() -> None:
        while left:
            with contextlib.suppress(ClientError, IndexError):
                client.cancel(left.pop(), force=True)

    _at_once([some] * CLIENTS)


def big_specs(cluster: NamespaceCluster, number: int) -> None:
    """Send specs of the largest body, larger ones, and deeper ones."""
    client = cluster.client()
    plain = {"name": "big", "launcher": "none", "run": ["true"]}
    for size in (100, 400, 4000):
        env = {f"V{n}": "v" * size for n in range(BIG_ENV)}
        for _ in range(number):
            with contextlib.suppress(ClientError):
                client.validate({**plain, "env": env})
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    with contextlib.suppress(ClientError):
        client.validate({**plain, "run": deep})


def lists(cluster: NamespaceCluster, number: int) -> None:
    """The same lists again and again, several users at once."""
    client = cluster.client()

    def some() -> None:
        for _ in range(number // CLIENTS):
            with contextlib.suppress(ClientError):
                client.all_jobs()
                client.nodes()

    _at_once([some] * CLIENTS)


class Readers:
    """Connections that ask for what has no end, and read nothing of it. Use it as a context."""

    def __init__(self, cluster: NamespaceCluster, job: int) -> None:
        settings = load_settings(cluster.base_env())
        follow = f"/v1/jobs/{job}/logs?format=ndjson&follow=1"
        paths = [follow] * SLOW_READERS
        paths += [f"/v1/jobs/{job}/wait?timeout_s={text}" for text in HUGE]
        paths += ["/v1/events?follow=1"] * 20
        with cluster.rig.network():
            self._open = [_asked(settings, path) for path in paths]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            connection.close()


def _asked(settings: Settings, path: str) -> socket.socket:
    parts = urlsplit(settings.url)
    host = parts.hostname or ""
    plain = socket.create_connection((host, parts.port or 443), 5.0)
    context = ssl.create_default_context(cafile=settings.ca)
    connection = context.wrap_socket(plain, server_hostname=host)
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    connection.sendall(f"{head}Authorization: Bearer {settings.token}\r\n\r\n".encode())
    return connection


def _at_once(what: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=one) for one in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

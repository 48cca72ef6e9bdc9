"""Looks on while somebody does harm: does the API answer, do nodes stay, does an honest user get
what was promised, and is the cluster at rest afterwards?"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from examples.local_cluster import ClusterError
from examples.rig.machine import RigError
from muster.client import Client, ClientError
from tests.storm.cluster import StormCluster

ANSWER_CPU_S = 2.0
"""CPU seconds of the coordinator before an answer; the slowest of a hundred may have more. Unlike
the time of an answer, they do not grow with what else this machine does."""
ANSWER_MOST_S = 180.0
"""A control plane that waits for something, without using the CPU, does not answer for longer."""
AWAY_S = 20.0
"""A node that nothing was done to is back before."""
EVERY_S = 0.2
REST_S = 1.0
REST_CPU = 0.25
"""The share of a core for one daemon of a cluster that has nothing to do."""
_NEVER: Callable[[str], bool] = lambda _: False  # noqa: E731
_TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Asks for the nodes and submits, again and again, in a thread of its own.

    `excused`: whether something is being done to a daemon of that name, or was a short while ago.
    """

    def __init__(
        self,
        cluster: StormCluster,
        excused: Callable[[str], bool] = _NEVER,
        away_s: float = AWAY_S,
    ) -> None:
        self._cluster = cluster
        self._excused = excused
        self._away_s = away_s
        self._took: dict[str, list[float]] = defaultdict(list)
        self._used: dict[str, list[float]] = defaultdict(list)
        self._away: dict[str, float] = {}
        self._failed: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def violations(self) -> list[str]:
        """Return the violations until now."""
        found = list(dict.fromkeys(self._failed))
        for what, took in self._took.items():
            used = slowest(self._used[what])
            print(f"{what}: CPU {used:.2f} s of {len(took)}, at most {max(took):.1f} s in all")
            if used > ANSWER_CPU_S:
                found.append(f"API: {what} takes {used:.1f} s of CPU, more than {ANSWER_CPU_S:g}")
            if max(took) > ANSWER_MOST_S:
                found.append(f"API: {what} took {max(took):.1f} s, more than {ANSWER_MOST_S:g}")
        return found

    def _run(self) -> None:
        client = self._cluster.client()
        key = f"watch-{time.monotonic_ns()}"
        # One job, submitted again and again under its key.
        spec = {"name": "watch", "launcher": "none", "run": ["true"], "retry": {"infra": 50}}
        mine: int | None = None
        while not self._over.wait(EVERY_S):
            self._timed("GET /v1/nodes", lambda: self._look(client))
            self._timed("POST /v1/jobs", lambda: client.submit(spec, key))
            if mine is None:
                with self._quietly():
                    mine = client.submit(spec, key).id
        with self._quietly():
            if mine is not None:
                client.cancel(mine)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        try:
            yield
        except ClientError:
            return

    def _timed(self, what: str, ask: Callable[[], Any]) -> None:
        before = self._excused(self._cluster.coordinator.name)
        began, used = time.monotonic(), self._cpu()
        try:
            ask()
        except ClientError as error:
            if not before and not self._excused(self._cluster.coordinator.name):
                self._failed.append(f"API: {what} is not answered: {error}")
            return
        if not before and not self._excused(self._cluster.coordinator.name):
            self._took[what].append(time.monotonic() - began)
            # After a restart it is less.
            self._used[what].append(max(0.0, self._cpu() - used))

    def _cpu(self) -> float:
        """Return the CPU seconds of the coordinator, 0 if it does not run."""
        try:
            return _cpu_s(self._cluster.coordinator.pid)
        except (OSError, ClusterError, RigError):
            return 0.0

    def _look(self, client: Client) -> None:
        links = {node.name: node.link for node in client.nodes().nodes}
        now = time.monotonic()
        for name in self._cluster.nodes:
            if links.get(name) == "connected" or self._excused(name):
                self._away.pop(name, None)
                continue
            since = self._away.setdefault(name, now)
            if now - since > self._away_s:
                self._failed.append(
                    f"links: {name} is {links.get(name)} for {self._away_s:g} s, and nobody has "
                    "done anything to it"
                )


def slowest(took: list[float]) -> float:
    """All but one in a hundred are faster, and all but one of fewer."""
    ranked = sorted(took)
    return ranked[max(0, min(len(ranked) - 2, math.ceil(len(ranked) * 0.99) - 1))]


def at_rest(cluster: StormCluster) -> list[str]:
    """Daemons that burn CPU though there is nothing to do, and folders that are left."""
    found = burning(cluster)
    for name in cluster.nodes:
        tasks = cluster.disk(name) / "tasks"
        found += [f"rest: {name} has {path.name} still" for path in tasks.glob("[0-9]*")]
    return found


def burning(cluster: StormCluster) -> list[str]:
    """Daemons that take more CPU than heartbeats need."""
    daemons = [cluster.coordinator, *cluster.nodes.values()]
    before = {daemon.name: _cpu_s(daemon.pid) for daemon in daemons}
    began = time.monotonic()
    time.sleep(REST_S)
    took = time.monotonic() - began
    shares = {d.name: (_cpu_s(d.pid) - before[d.name]) / took for d in daemons}
    return [
        f"rest: {name} takes {share:.0%} of a core, and nothing happens"
        for name, share in shares.items()
        if share > REST_CPU
    ]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

"""Code to many nodes over a slow link of the coordinator, compared with one node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.launch.samples import Aim, Row
from examples.namespace_cluster import NamespaceCluster

NODES = 8
RATE = "100mbit"
TIME_AIM = 1.5
BYTES_AIM = 2.0
_FILE_BYTES = 4_000_000


def measure(folder: Path, size: int, show: Callable[[list[Row]], None]) -> None:
    """Send new content to one node and then to all, each on a simulated machine, and show the
    figures before the end of the cluster, which may fail on a busy machine. Needs root."""
    mb = f"{size / 1e6:g} MB"
    one = Row("fan-out", f"{mb} to one node, link {RATE}", "floor")
    all_nodes = Row("fan-out", f"{mb} to {NODES} nodes", "ours")
    times = Row("fan-out", "all / one", "ours", "x", aim=Aim(TIME_AIM))
    sent = Row("fan-out", "bytes that the coordinator sent, of the code", "ours", "x")
    sent.aim = Aim(BYTES_AIM)
    with NamespaceCluster(folder / "fan-out", agents=NODES) as cluster:
        one.add(_submit(cluster, size, 1)[0])
        took_ms, bytes_sent = _submit(cluster, size, NODES)
        all_nodes.add(took_ms)
        times.add(took_ms / one.median)
        sent.add(bytes_sent / size)
        show([one, all_nodes, times, sent])


def _submit(cluster: NamespaceCluster, size: int, nodes: int) -> tuple[float, int]:
    """Return the time from the start on free nodes to the job's end, and the bytes sent then."""
    code = cluster.root / "code"
    code.mkdir(exist_ok=True)
    for number in range(size // _FILE_BYTES):
        (code / str(number)).write_bytes(os.urandom(_FILE_BYTES))
    for _ in cluster.nodes:
        _muster(cluster, code, "--name", "blocker", "--set", "workdir=none", "--", "sleep", "1d")
    job = _muster(cluster, code, "--nodes", str(nodes), "--set", "workdir=.", "--", "true")
    cluster.head.slow(RATE)
    before, began = _sent(cluster), time.perf_counter()
    for number in range(int(job) - len(cluster.nodes), int(job)):
        cluster.muster("cancel", "--grace", "0s", str(number))
    cluster.muster("wait", job)
    took_ms = (time.perf_counter() - began) * 1e3
    cluster.head.slow(None)
    return took_ms, _sent(cluster) - before


def _muster(cluster: NamespaceCluster, folder: Path, *words: str) -> str:
    environ = {**cluster.base_env(), "XDG_CACHE_HOME": str(cluster.root / "cache")}
    argv = cluster.command("submit", *words)
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _sent(cluster: NamespaceCluster) -> int:
    argv = cluster.head.enter("cat", "/sys/class/net/eth0/statistics/tx_bytes")
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

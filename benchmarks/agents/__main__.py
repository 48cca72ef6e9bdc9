"""Thousands of agents on one coordinator: memory per agent, with and without TLS, and CPU time.

The agents are one process with real websockets that speaks the protocol and does nothing else; the
coordinator is the real one. Memory is the growth of its resident set after every agent has
connected and sent some heartbeats.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
import yaml

from benchmarks.launch.cluster import Connection, Wrong, job_of
from benchmarks.launch.processor import processor_ms
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import ClusterError, LocalCluster
from muster.spec.field_readers import MAX_NODES

SIZES = (1000, 5000)
REST_S = 10.0
BLOB_BYTES = 4096
KIB_PLAIN, KIB_TLS = 40, 80
_ROOT = Path(__file__).resolve().parents[2]


class Crowd:
    """The process that runs the agents."""

    def __init__(self, number: int, local: LocalCluster, ca: Path | None, *, logs: bool) -> None:
        scheme, host = ("http", "127.0.0.1") if ca is None else ("https", "localhost")
        agent = yaml.safe_load((local.root / "config" / "agent.yaml").read_text())
        token = Path(agent["token_file"])
        if not token.is_absolute():
            token = local.root / "config" / token
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.agents.crowd", str(number)),
                *(f"{scheme}://{host}:{local.port}", str(ca or ""), "logs" if logs else "control"),
            ],
            cwd=_ROOT,
            env={**os.environ, "TOKEN": token.read_text().strip()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def do(self, command: str) -> float:
        """Run a command of the crowd and return the seconds that it measured. Raises Wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Wrong(f"the agents ended while they were to {command}")
        seconds: float = json.loads(line)["s"]
        return seconds


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    rows: list[Row] = []
    try:
        for size in args.agents or SIZES:
            rows += measure(size, tls=False, logs=False)
            rows += measure(size, tls=False, logs=True)
            rows += measure(size, tls=True, logs=False)
    except KeyboardInterrupt:
        return 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        return 1
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def measure(size: int, *, tls: bool, logs: bool) -> list[Row]:
    """Measure one coordinator per line of the memory table."""
    kind = f"{size} agents{', TLS' if tls else ''}{', with log links' if logs else ''}"
    print(f"{kind}: connecting", file=sys.stderr, flush=True)
    aim = None if logs else Aim(KIB_TLS if tls else KIB_PLAIN)
    memory = Row("agents", f"{kind}: memory for one", "ours", "KiB", aim)
    rest = Row("agents", f"{kind}: processor at rest", "ours", "% core")
    first = Row("agents", f"{kind}: all connect at once", "ours", "s")
    storm = Row("agents", f"{kind}: all are cut and come back at once", "ours", "s")
    notified = Row("agents", f"{kind}: {BLOB_BYTES // 1024} KiB to each, all together", "ours", "s")
    with _coordinator(tls=tls) as (local, ca), Crowd(size, local, ca, logs=logs) as crowd:
        before = _resident_kib(local)
        first.add(crowd.do("connect"))
        rest.add(_at_rest(local))
        memory.add((_resident_kib(local) - before) / size)
        if not tls:
            notified.add(_notify_all(local, crowd, size))
        crowd.do("drop")
        storm.add(crowd.do("connect"))
    return [memory, rest, first, notified, storm]


def _notify_all(local: LocalCluster, crowd: Crowd, size: int) -> float:
    """Submit a gang of all agents, or the largest possible one, and measure the time until the last
    agent has its task.
    """
    connection, nodes = Connection(local), min(size, MAX_NODES)
    body = job_of(nodes=nodes, launcher="none", run=["true"], env={"BLOB": "x" * BLOB_BYTES})
    began = time.perf_counter()
    job = connection.submit(body)
    crowd.do(f"prepared {nodes}")
    took = time.perf_counter() - began
    connection.call("POST", f"/v1/jobs/{job}/cancel", b'{"force": true}')
    connection.call("GET", f"/v1/jobs/{job}/wait?timeout_s=60")
    connection.close()
    return took


def _at_rest(local: LocalCluster) -> float:
    """CPU use in percent of one core, including heartbeats."""
    time.sleep(REST_S)  # wait for the work that the hellos caused
    before, began = processor_ms(local.coordinator.pid), time.perf_counter()
    time.sleep(REST_S)
    return (processor_ms(local.coordinator.pid) - before) / (time.perf_counter() - began) / 10


def _resident_kib(local: LocalCluster) -> int:
    status = Path(f"/proc/{local.coordinator.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@contextmanager
def _coordinator(*, tls: bool) -> Iterator[tuple[LocalCluster, Path | None]]:
    """Start a coordinator without agents of its own, and return its CA."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        local = LocalCluster(Path(folder), agents=0)
        _set(local, limits={"new_nodes_per_hour": 10_000})
        ca = _with_tls(local) if tls else None
        local.coordinator.start()
        try:
            _until_it_listens(local)
            yield local, ca
        finally:
            local.stop()


def _with_tls(local: LocalCluster) -> Path:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    cert, key, ca = (local.root / name for name in ("cert.pem", "key.pem", "ca.pem"))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(cert, append=True)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    key.chmod(0o600)
    _set(local, tls={"cert": str(cert), "key": str(key)})
    return ca


def _set(local: LocalCluster, **settings: object) -> None:
    path = local.root / "config" / "coordinator.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def _until_it_listens(local: LocalCluster) -> None:
    deadline = time.monotonic() + 30
    while "serving" not in local.coordinator.tail():
        if time.monotonic() > deadline:
            raise Wrong(f"the coordinator does not serve:\n{local.coordinator.tail()}")
        time.sleep(0.05)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__)
    parser.add_argument("--agents", type=int, action="append", help="how many (1000 and 5000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Lists and filters over very many finished jobs, and restart times with them.

The journal is written beforehand by its own code (`history`). The coordinator is the real one, and
all queries use one connection.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.api.history import write
from benchmarks.launch.cluster import Connection, Wrong
from benchmarks.launch.report import machine, write_json
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import ClusterError, LocalCluster

JOBS = 1_000_000
ANSWER_MS, RESTART_S = 50, 3
_KEPT_S = 100 * 365 * 86_400
_STARTS = 6
_START_MAX_S = 600.0
_LISTS = {
    "the newest 100": "limit=100",
    "the newest 1000": "limit=1000",
    "one user's of 50": "user=user-7",
    "of a user that has none": "user=nobody",
    "of one name of 1000": "name=train-77",
    "of a name that none has": "name=nothing",
    "those that wait or run": "state=QUEUED,RUNNING",
    "those that failed": "state=FAILED",
    "those that failed or were lost": "state=FAILED,LOST,TIMEOUT",
    "of one pool of two": "pool=big",
    "of a pool that has none": "pool=none",
    "one user's that failed": "user=user-7&state=FAILED",
    "one user's that never are cancelled": "user=user-7&state=CANCELLED",
    "one user's in a pool, failed or cancelled": "user=user-7&pool=big&state=FAILED,CANCELLED",
    "a pool's of a user that is never there": "pool=default&user=user-7&name=train-3",
    "everything asked for": "user=user-7&name=train-77&pool=big&state=SUCCEEDED",
}


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows, notes = measure(Path(folder), args.jobs, args.rounds, args.journal)
    except KeyboardInterrupt:
        return 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        return 1
    print(_table(where, rows, notes))
    if args.json is not None:
        write_json(args.json, where, rows, notes)
    return 0


def measure(
    folder: Path, jobs: int, rounds: int, journal: Path | None
) -> tuple[list[Row], list[str]]:
    """Measure restarts, then queries. `journal` is a state directory written by `history`."""
    local = LocalCluster(folder, agents=0)
    file = local.root / "config" / "coordinator.yaml"
    config = yaml.safe_load(file.read_text())
    # The jobs of the journal ended long ago, and none may be removed by retention.
    config["ended_jobs"] = {"keep_s": _KEPT_S, "keep_max": 10 * jobs}
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    state_dir = local.root / "config" / config["state_dir"]
    if journal is None:
        print(f"writing a journal of {jobs} jobs", file=sys.stderr, flush=True)
        write(state_dir, jobs)
    else:
        shutil.rmtree(state_dir, ignore_errors=True)
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.symlink_to(journal.resolve())
    size = sum(file.stat().st_size for file in state_dir.glob("journal.sqlite*"))
    notes = [f"journal: {size / 1e6:.0f} MB, {size / jobs:.0f} bytes a job"]
    try:
        rows = _starts(local, jobs, notes)
        rows += _questions(local, jobs, rounds)
        notes.append(f"coordinator after all questions: {_memory(local)}")
    finally:
        local.stop()
    return rows, notes


def _starts(local: LocalCluster, jobs: int, notes: list[str]) -> list[Row]:
    """Measure starts, every second one after a SIGKILL. The last one keeps running."""
    row = Row("restart", f"{jobs} finished jobs: exec to 200 of /readyz", "ours", "s")
    row.aim = Aim(RESTART_S)
    processor = Row("restart", "of it processor time", "ours", "s")
    for number in range(_STARTS):
        if number:
            (local.coordinator.kill if number % 2 else local.coordinator.stop)()
        began = time.perf_counter()
        local.coordinator.start()
        _until_ready(local)
        row.add(time.perf_counter() - began)
        processor.add(_processor_s(local))
    notes.append(f"coordinator when it serves: {_memory(local)}")
    return [row, processor]


def _questions(local: LocalCluster, jobs: int, rounds: int) -> list[Row]:
    connection = Connection(local)
    rng = random.Random(1)
    rows = []

    def ask(what: str, call: Callable[[], Any]) -> None:
        row = Row("api", what, "ours", aim=Aim(ANSWER_MS))
        for _ in range(rounds):
            began = time.perf_counter()
            call()
            row.add((time.perf_counter() - began) * 1e3)
        rows.append(row)

    def one() -> int:
        return rng.randint(1, jobs)

    for what, query in _LISTS.items():
        ask(f"list {what}", lambda query=query: connection.call("GET", f"/v1/jobs?{query}"))  # type: ignore[misc]
    for what, query in (("all", "limit=100"), ("one user's that failed", _FAILED)):
        pages = _Pages(connection, query)
        ask(f"page after page of {what}", pages.next)
    ask("show any job", lambda: connection.call("GET", f"/v1/jobs/{one()}"))
    ask("events of any job", lambda: connection.call("GET", f"/v1/jobs/{one()}/events"))
    ask("explain any job", lambda: connection.call("GET", f"/v1/jobs/{one()}/explain"))
    ask(
        "any 100 events", lambda: connection.call("GET", f"/v1/events?limit=100&after={10 * one()}")
    )
    ask("cancel of a job that has ended", lambda: _cancel(connection, one()))
    connection.close()
    return rows


_FAILED = "user=user-7&state=FAILED"


class _Pages:
    """A paged list that starts again after the last page."""

    def __init__(self, connection: Connection, query: str) -> None:
        self._connection = connection
        self._query = query
        self._cursor: str | None = None

    def next(self) -> None:
        cursor = f"&cursor={self._cursor}" if self._cursor else ""
        answer = self._connection.call("GET", f"/v1/jobs?{self._query}{cursor}")
        self._cursor = answer["cursor"]


def _cancel(connection: Connection, job: int) -> None:
    if not connection.call("POST", f"/v1/jobs/{job}/cancel", b"{}")["already_ended"]:
        raise Wrong(f"job {job} was cancelled")


def _until_ready(local: LocalCluster) -> None:
    deadline = time.monotonic() + _START_MAX_S
    while time.monotonic() < deadline:
        asked = http.client.HTTPConnection("127.0.0.1", local.port, timeout=5)
        with contextlib.closing(asked), contextlib.suppress(OSError):
            asked.request("GET", "/readyz")
            if asked.getresponse().status == 200:
                return
        time.sleep(0.01)
    raise Wrong(f"the coordinator does not serve:\n{local.coordinator.tail()}")


def _processor_s(local: LocalCluster) -> float:
    stat = Path(f"/proc/{local.coordinator.pid}/stat").read_text()
    user_ticks, system_ticks = stat.rpartition(")")[2].split()[11:13]
    return (int(user_ticks) + int(system_ticks)) / os.sysconf("SC_CLK_TCK")


def _memory(local: LocalCluster) -> str:
    status = Path(f"/proc/{local.coordinator.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    now, most = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return f"{now:.0f} MiB resident, {most:.0f} MiB at most"


def _table(where: dict[str, str], rows: list[Row], notes: list[str]) -> str:
    lines = [f"{name}: {value}" for name, value in where.items()]
    lines += [
        "",
        "| what | unit | n | p50 | p99 | most | aim |  |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        p99 = row.percentile(99)
        met = "" if row.aim is None else "met" if row.aim.met(p99) else "NOT MET"
        figures = " | ".join(f"{x:.2f}" for x in (row.median, p99, max(row.samples)))
        count = len(row.samples)
        aim = row.aim or ""
        lines.append(f"| {row.what} | {row.unit} | {count} | {figures} | {aim} | {met} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many have ended")
    parser.add_argument("--rounds", type=int, default=200, help="answers to each question")
    parser.add_argument(
        "--journal", type=Path, metavar="FOLDER", help="a state folder with that many, written "
        "by `benchmarks.api.history`"
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

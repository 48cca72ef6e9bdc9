"""Lists and filters over very many finished jobs, and how long a restart takes with them.

The journal is written beforehand, two facts a job, the fewest that there can be; the coordinator is
the real one, and each question goes over a connection that is kept.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.launch.cluster import Connection, Wrong
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import ClusterError, LocalCluster
from muster.protocol.ids import JobId
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.parse import parse_mapping
from orchestrator.core import facts as f
from orchestrator.journal.sqlite import Journal

JOBS = 1_000_000
ANSWER_MS, RESTART_S = 50, 3
USERS = 50
_BATCH = 10_000
_START_MAX_S = 600.0
_QUESTIONS = {
    "the newest 100": "?limit=100",
    "one user's of 50": "?user=user-7",
    "of a user that has none": "?user=nobody",
    "those that wait or run": "?state=QUEUED,RUNNING",
    "those that failed": "?state=FAILED",
    "of a pool that has none, a page": "?pool=none",
}


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Path(folder), args.jobs, args.rounds)
    except KeyboardInterrupt:
        return 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        return 1
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def measure(folder: Path, jobs: int, rounds: int) -> list[Row]:
    restart = Row("api", f"{jobs} finished jobs: from the start until it serves", "ours", "s")
    restart.aim = Aim(RESTART_S)
    rows = [restart]
    local = LocalCluster(folder, agents=0)
    config = yaml.safe_load((local.root / "config" / "coordinator.yaml").read_text())
    print(f"writing a journal of {jobs} jobs", file=sys.stderr, flush=True)
    write_journal(local.root / "config" / config["state_dir"], jobs)
    began = time.perf_counter()
    local.coordinator.start()
    try:
        _until_it_serves(local)
        restart.add(time.perf_counter() - began)
        connection = Connection(local)
        for what, query in _QUESTIONS.items():
            row = Row("api", f"list {what}", "ours", aim=Aim(ANSWER_MS))
            for _ in range(rounds):
                began = time.perf_counter()
                connection.call("GET", f"/v1/jobs{query}")
                row.add((time.perf_counter() - began) * 1e3)
            rows.append(row)
        connection.close()
    finally:
        local.stop()
    return rows


def write_journal(state_dir: Path, jobs: int) -> None:
    """Each job was submitted and cancelled while it waited."""
    spec = parse_mapping({"run": ["/bin/true"], "launcher": "none"})
    cause = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by somebody")
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    journal = Journal.open(state_dir)
    try:
        for first in range(1, jobs + 1, _BATCH):
            facts: list[tuple[f.Durable, float]] = []
            for number in range(first, min(first + _BATCH, jobs + 1)):
                job = JobId(number)
                facts.append((f.JobSubmitted(job, spec, f"user-{number % USERS}"), float(number)))
                facts.append((f.JobEnded(job, cause), float(number)))
            journal.append(facts)
    finally:
        journal.close()


def _until_it_serves(local: LocalCluster) -> None:
    deadline = time.monotonic() + _START_MAX_S
    while "serving" not in local.coordinator.tail():
        if time.monotonic() > deadline:
            raise Wrong(f"the coordinator does not serve:\n{local.coordinator.tail()}")
        time.sleep(0.02)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many have ended")
    parser.add_argument("--rounds", type=int, default=100, help="answers to each question")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

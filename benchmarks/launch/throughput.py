"""Short one-node jobs per second, end to end: submitted and on disk, run, ended and on disk."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable

from benchmarks.launch import slurm
from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of, settle
from benchmarks.launch.processor import AGENTS as OF_AGENTS
from benchmarks.launch.processor import COORDINATOR, TASKS, by_kind, used_ms
from benchmarks.launch.samples import Row
from muster.protocol.states import ENDED_STATES, JobState

AGENTS = 12
CONNECTIONS = 8
_LIVE = ",".join(state.value for state in JobState if state not in ENDED_STATES)


def measure(rounds: int, jobs: int, slurm_jobs: int) -> tuple[list[Row], list[str]]:
    """Measure rounds of `jobs` jobs each. Slurm gets fewer per round, because its rate does not
    depend on the number.
    """
    ours = Row(
        "throughput",
        f"jobs of `true`, {AGENTS} agents, {jobs} jobs, {CONNECTIONS} connections, durable",
        "ours",
        unit="jobs/s",
    )
    submits = Row("throughput", "submits answered, each after fsync", "ours", unit="jobs/s")
    parts = {
        kind: Row("throughput", f"  processor time a job, {kind}", "ours")
        for kind in (COORDINATOR, OF_AGENTS, TASKS)
    }
    peer = Row(
        "throughput", f"sbatch in {CONNECTIONS} loops, {slurm_jobs} jobs", "Slurm", unit="jobs/s"
    )
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(cluster(AGENTS))
        other = slurm.installed() and stack.enter_context(slurm.running(AGENTS))
        connections = [Connection(local) for _ in range(CONNECTIONS)]
        for connection in connections:
            stack.callback(connection.close)
        _round(connections, 2 * AGENTS)
        for _ in range(rounds):
            settle(local)
            before = by_kind(local)
            submitted_s, ended_s = _round(connections, jobs)
            settle(local)
            for kind, used in used_ms(before, by_kind(local)).items():
                parts[kind].add(used / jobs)
            submits.add(jobs / submitted_s)
            ours.add(jobs / ended_s)
            if other:
                peer.add(slurm_jobs / other.sbatch_many(slurm_jobs, CONNECTIONS))
    return [ours, submits, *parts.values(), peer], []


def _round(connections: list[Connection], jobs: int) -> tuple[float, float]:
    """Seconds until all submits were answered, and until all jobs have ended."""
    body = job_of(nodes=1, launcher="none", run=["true"])
    numbers: list[int] = []

    def submit(connection: Connection, count: int) -> None:
        numbers.extend([connection.submit(body) for _ in range(count)])

    began = time.perf_counter()
    each = jobs // len(connections)
    in_parallel([functools.partial(submit, connection, each) for connection in connections])
    submitted_s = time.perf_counter() - began
    first = connections[0]
    # Queues are served in order, so the last few end last.
    for job in sorted(numbers)[-2 * AGENTS :]:
        first.wait(job)
    while first.call("GET", f"/v1/jobs?limit=1&state={_LIVE}")["jobs"]:
        time.sleep(0.005)
    ended_s = time.perf_counter() - began
    good = first.call("GET", f"/v1/jobs?limit={len(numbers)}&state=SUCCEEDED")["jobs"]
    if {job["id"] for job in good} != set(numbers) or len(numbers) < jobs // 2:
        raise Wrong(f"of {len(numbers)} jobs only {len(good)} are among the last that succeeded")
    return submitted_s * jobs / len(numbers), ended_s * jobs / len(numbers)


def in_parallel(work: list[Callable[[], None]]) -> None:
    """Run all in parallel threads. Raises the first error."""
    errors: list[Exception] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below, in the calling thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

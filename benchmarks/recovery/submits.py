"""Acknowledged submits across kills of the coordinator: number of lost ones."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.launch import slurm
from benchmarks.launch.cluster import Connection, Wrong, job_of
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import LocalCluster

EACH = 100
_LOOPS = 2


def ours(rounds: int) -> Row:
    """Rounds of 100 submits, each with a kill at a random time. The only node is busy, so that
    every job waits and must be found again.
    """
    row = Row("submits", f"acknowledged, lost, of {EACH} a kill", "ours", "jobs", Aim(0))
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        local = LocalCluster(Path(folder), agents=1)
        with local:
            holder = Connection(local)
            first = holder.submit(job_of(launcher="none", run=["sleep", "10000"]))
            acknowledged: set[int] = set()
            for _ in range(rounds):
                new = _submit_over_a_kill(local)
                acknowledged |= new
                row.add(len(new - _there(local)))
            missing = acknowledged - _there(local)
            if missing:
                raise Wrong(f"{len(missing)} of {len(acknowledged)} submits are lost")
            holder = Connection(local)
            holder.call("POST", f"/v1/jobs/{first}/cancel", b'{"force": true}')
            holder.call("GET", f"/v1/jobs/{first}/wait?timeout_s=30")
    return row


def _submit_over_a_kill(local: LocalCluster) -> set[int]:
    """Exactly 100 acknowledged submits, some before the kill and some after."""
    found: set[int] = set()
    lock = threading.Lock()
    body = job_of(launcher="none", run=["true"])

    def loop() -> None:
        connection = Connection(local)
        while True:
            with lock:
                if len(found) >= EACH:
                    return
            try:
                number = connection.submit(body)
            except (OSError, http.client.HTTPException):
                # It is dead, or not up yet: submits without an acknowledgement do not count.
                connection.close()
                time.sleep(0.01)
                continue
            with lock:
                if len(found) < EACH:
                    found.add(number)

    threads = [threading.Thread(target=loop) for _ in range(_LOOPS)]
    for thread in threads:
        thread.start()
    time.sleep(random.uniform(0.0, 0.3))
    local.coordinator.kill()
    local.coordinator.start()
    for thread in threads:
        thread.join()
    # The kill may have come after the last of them.
    local.wait_for_nodes()
    return found


def _there(local: LocalCluster) -> set[int]:
    connection = Connection(local)
    found: set[int] = set()
    cursor = ""
    while True:
        page = connection.call("GET", f"/v1/jobs?limit=1000{cursor}")
        found |= {job["id"] for job in page["jobs"]}
        if not page.get("cursor"):
            connection.close()
            return found
        cursor = f"&cursor={page['cursor']}"


def peer(rounds: int) -> Row:
    """Slurm with defaults: sbatch, and a SIGKILL of slurmctld right after it."""
    row = Row("submits", f"acknowledged, lost, of {EACH} a kill", "Slurm", "jobs")
    with slurm.running(1) as there:
        for _ in range(rounds):
            given = set()
            for _ in range(EACH):
                said = there.run("sbatch", "-H", "-o", "/dev/null", "--wrap", "true")
                given.add(re.findall(r"\d+", said)[-1])
            there.kill_controller()
            there.start_controller()
            row.add(len(given - set(there.run("squeue", "-h", "-o", "%i").split())))
            with contextlib.suppress(RuntimeError, subprocess.SubprocessError):
                there.run("scancel", "-u", "root")
    return row

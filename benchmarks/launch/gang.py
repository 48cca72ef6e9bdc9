"""Time from a request until a 4-node gang of `true` has started, and until it has ended."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime

from benchmarks.launch import floor, slurm
from benchmarks.launch.cluster import Connection, cluster, job_of, settle
from benchmarks.launch.samples import Row

NODES = 4
_WARM_UP = 3
_REST_S = 0.1


def measure(rounds: int) -> tuple[list[Row], list[str]]:
    """Measure Muster, Slurm and the floor in turns, so that all three have the same conditions."""
    started = Row("gang", "request -> 4 nodes started, recorded", "ours")
    ended = Row("gang", "request -> ended, durable, answered", "ours")
    peer = Row("gang", f"srun -N{NODES} true, whole command", "Slurm")
    fan_started = Row("gang", "fan-out over 4 websockets, spawned", "floor")
    fan_ended = Row("gang", "fan-out over 4 websockets, ended", "floor")
    body = job_of(nodes=NODES, launcher="none", run=["true"])
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(cluster(NODES))
        fan = stack.enter_context(floor.fan_out(NODES))
        other = slurm.installed() and stack.enter_context(slurm.running(NODES))
        connection = Connection(local)
        stack.callback(connection.close)
        for number in range(-_WARM_UP, rounds):
            # Do not measure while another system cleans up.
            settle(local)
            if other:
                other.settle()
            time.sleep(_REST_S)
            ours = _ours(connection, body)
            settle(local)
            theirs = other.srun(NODES) if other else None
            least = fan.once()
            if number < 0:
                continue
            started.add(ours[0])
            ended.add(ours[1])
            if theirs is not None:
                peer.add(theirs)
            fan_started.add(least[0])
            fan_ended.add(least[1])
    return [started, ended, peer, fan_started, fan_ended], []


def _ours(connection: Connection, body: bytes) -> tuple[float, float]:
    """Milliseconds to the last node's recorded start, and to the answer that all have ended."""
    wall, began = time.time(), time.perf_counter()
    job = connection.submit(body)
    connection.wait(job)
    ended = time.perf_counter() - began
    # Coordinator and benchmark read the same clock.
    starts = [
        datetime.fromisoformat(e["at"]).timestamp()
        for e in connection.events(job)
        if e["kind"] == "TaskStarted"
    ]
    assert len(starts) == NODES, f"job {job} has {len(starts)} starts on record"
    return (max(starts) - wall) * 1e3, ended * 1e3

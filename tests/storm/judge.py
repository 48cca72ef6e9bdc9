"""Invariants after a storm, from the notes of jobs and users, and from the kernel's view of
daemons. The jobs' own locks show, as they begin, that no node has two jobs (I5). Clocks are not
turned here: I9 is the simulator's."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from examples.local_cluster import ClusterError
from examples.rig.machine import RigError
from muster.client import Client
from muster.client.log_stream import LogQuery
from muster.http.views import LogRecord, LogTrailer
from muster.protocol.states import ENDED_STATES, JobState
from tests.storm.cluster import StormCluster
from tests.storm.users import Job

GROWTH_MAX = 64 << 20
_LINE = re.compile(rb"line (\d+) (\d+) (\d+)\n")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class Memory:
    """Growth of the daemons beyond their size when all of them have just come up (I8): each process
    that `look` meets, by its own peak."""

    def __init__(self, cluster: StormCluster) -> None:
        self.cluster = cluster
        self.before = self._peaks()
        self.peaks = dict(self.before)

    def look(self) -> None:
        for name, peak in self._peaks().items():
            self.peaks[name] = max(self.peaks[name], peak)

    def grown(self) -> dict[str, int]:
        return {name: self.peaks[name] - before for name, before in self.before.items()}

    def violations(self) -> list[str]:
        return [
            f"I8: {name} grew by {size >> 20} MiB, more than {GROWTH_MAX >> 20}"
            for name, size in self.grown().items()
            if size > GROWTH_MAX
        ]

    def _peaks(self) -> dict[str, int]:
        found = {}
        for daemon in (self.cluster.coordinator, *self.cluster.nodes.values()):
            found[daemon.name] = 0
            with contextlib.suppress(OSError, ClusterError, RigError):
                status = Path(f"/proc/{daemon.pid}/status").read_text()
                if peak := _PEAK.search(status):
                    found[daemon.name] = int(peak[1]) << 10
        return found


def undelivered(client: Client, job: Job) -> list[str]:
    """Return the logs of a job that the coordinator calls incomplete."""
    found = []
    for attempt in client.job(job.id).attempts:
        found += [
            f"I10: job {job.id} attempt {attempt.number}: {record.reason}"
            for record in client.logs(job.id, LogQuery(attempt=attempt.number))
            if isinstance(record, LogTrailer) and "not all" in (record.reason or "")
        ]
    return found


def judge(client: Client, job: Job) -> Iterator[str]:
    """Everything that is wrong with a job that has ended."""
    view = client.job(job.id)
    who = f"job {job.id} ({job.kind}, {job.folder.name})"
    notes = _notes(job.folder)
    yield from (f"{who}: {n.removeprefix('violation ')}" for n in notes if n.startswith("viol"))
    if view.state not in ENDED_STATES:
        yield f"I10: {who} is still {view.state.value}: {view.reason.text}"
        return
    if job.attempts_at_cancel is not None and len(view.attempts) > job.attempts_at_cancel:
        yield f"I1: {who} began another attempt after its cancel"
    starts = [n for n in notes if n.startswith("start ")]
    for start in sorted(set(starts)):
        if starts.count(start) > 1:
            yield f"I3: {who}: {start!r} happened {starts.count(start)} times"
    numbers = [int(start.split()[1]) for start in starts]
    if numbers != sorted(numbers):
        yield f"I3: {who}: attempts began in the order {numbers}"
    ends = {(int(a), int(r)): int(n) for _, a, r, n in (e.split() for e in notes if e[:3] == "end")}
    lines = _lines(client, job, [a.number for a in view.attempts])
    for (attempt, rank), seen in sorted(lines.items()):
        if seen != list(range(1, len(seen) + 1)):
            yield f"I6: {who}: lines of attempt {attempt} rank {rank} are {_gist(seen)}"
    for (attempt, rank), wrote in sorted(ends.items()):
        if len(lines[attempt, rank]) != wrote:
            has = len(lines[attempt, rank])
            yield f"I6: {who}: attempt {attempt} rank {rank} wrote {wrote} lines, {has} are there"
    if view.state is JobState.SUCCEEDED:
        ranks = 1 if job.kind == "one" else 2
        last = view.attempts[-1].number
        if sum(attempt == last for attempt, _ in ends) != ranks:
            yield f"I2: {who} succeeded, and not all ranks of attempt {last} came to their end"


def left(cluster: StormCluster) -> list[str]:
    """Return the remains on the nodes of jobs that have all ended (I4)."""
    found = [f"I4: a process is left: {line}" for line in cluster.survivors()]
    for name in cluster.nodes:
        tasks = cluster.root / "state" / name / "tasks"
        found += [f"I4: {name} has {p.name} still" for p in tasks.glob("[0-9]*")]
    return found


def hosts_changed(cluster: StormCluster, before: dict[str, str]) -> list[str]:
    """Machines whose /etc/hosts is not what it was (I7)."""
    return [
        f"I7: /etc/hosts of {name} has changed"
        for name, machine in cluster.machines.items()
        if machine.hosts() != before[name]
    ]


def tracebacks(cluster: StormCluster) -> list[str]:
    """Errors of daemons that nobody foresaw."""
    found = []
    for log in sorted((cluster.root / "logs").glob("*.log")):
        text = log.read_text(errors="replace")
        if "Traceback" in text:
            at = text.index("Traceback")
            found.append(f"a daemon raised: {log.name}: {text[at : at + 3000]}")
    return found


def _notes(folder: Path) -> list[str]:
    notes = folder / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def _lines(client: Client, job: Job, attempts: list[int]) -> dict[tuple[int, int], list[int]]:
    streams: dict[tuple[int, str, int | None], bytearray] = defaultdict(bytearray)
    for number in attempts:
        for record in client.logs(job.id, LogQuery(attempt=number, stream="stdout")):
            if isinstance(record, LogRecord) and record.gap is None and record.data is not None:
                key = (record.attempt, record.node, record.rank)
                streams[key] += record.data.encode()
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for data in streams.values():
        # The last one has no end where the disk was full in its middle: it was never written.
        for line in bytes(data).splitlines(keepends=True):
            if match := _LINE.fullmatch(line):
                attempt, rank, number = (int(group) for group in match.groups())
                found[attempt, rank].append(number)
    return found


def _gist(seen: list[int]) -> str:
    for place, number in enumerate(seen, 1):
        if place != number:
            return f"1 to {place - 1}, then {seen[place - 1 : place + 4]} of {len(seen)}"
    return "whole"

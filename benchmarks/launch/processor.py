"""CPU time of processes, and the current speed of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from examples.local_cluster import LocalCluster

COORDINATOR = "coordinator"
AGENTS = "agents"
TASKS = "shims, their runners and programs"
AIM_AIOHTTP_MS = 175
"""`python -c 'import aiohttp'` on the machine on which the targets were set."""
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_SQUARES = 1_000_000


def processor_ms(pid: int) -> float:
    """Processor time of all threads of a process, from the scheduler's counter."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks.iterdir()) / 1e6


def by_kind(local: LocalCluster) -> dict[int, tuple[str, float]]:
    """Each living process of the cluster with its kind and its processor time in ms. A shim's time
    includes that of its ended tasks.
    """
    agents = {daemon.pid for daemon in local.nodes.values()}
    found = {local.coordinator.pid: (COORDINATOR, processor_ms(local.coordinator.pid))}
    found |= {pid: (AGENTS, processor_ms(pid)) for pid in agents}
    mark = str(local.root).encode()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdecimal() or mark not in (entry / "environ").read_bytes():
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if (entry / "comm").read_text().startswith("muster-"):
                waited = (int(fields[13]) + int(fields[14])) * _TICK_MS
                found[int(entry.name)] = (TASKS, processor_ms(int(entry.name)) + waited)
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def used_ms(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]]
) -> dict[str, float]:
    """Processor time between two results of `by_kind`, by kind."""
    used = dict.fromkeys((COORDINATOR, AGENTS, TASKS), 0.0)
    for pid, (kind, total) in after.items():
        used[kind] += total - before.get(pid, (kind, 0.0))[1]
    return used


def pace() -> str:
    """Current speed of this machine, to put figures in proportion."""
    imports = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import aiohttp"], check=True)
        imports.append((time.perf_counter() - began) * 1e3)
    began = time.process_time()
    total = 0
    for number in range(_SQUARES):
        total += number * number
    squares_ms = (time.process_time() - began) * 1e3
    return (
        f"import aiohttp {min(imports):.0f} ms ({AIM_AIOHTTP_MS} where the aims were set), "
        f"a million squares {squares_ms:.0f} ms"
    )

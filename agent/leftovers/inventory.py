"""Inventory of leftovers other than processes: names, directories, mounts, cgroups.

An agent removes them as it starts. This list is for its log and for `muster doctor`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.hostsfile.tables import lease_of_task
from agent.shim.system.cgroup import dead
from agent.taskdirs.taskdirs import TASKS, is_being_created
from muster.protocol.hosts_file import parse
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.text import named

_NAMED: Final = 8
_MOUNTS: Final = Path("/proc/mounts")


def list_leftovers(state_dir: Path, hosts: Path, before: float = math.inf) -> tuple[str, ...]:
    """Describe the leftovers of tasks without a directory in `state_dir`. Beside a running agent,
    directories modified after `before` (UTC seconds) may still be in use. Blocks; skips what cannot
    be read.
    """
    tasks = state_dir / TASKS
    return (
        *_names(tasks, hosts),
        *_folders(tasks, before),
        *_mounts(tasks),
        *_cgroups(),
    )


def _names(tasks: Path, hosts: Path) -> Iterator[str]:
    try:
        blocks = parse(hosts.read_bytes()).entries
    except OSError:
        return
    alive = {lease_of_task(TaskId(name)) for name in _listed(tasks) if _is_task(name)}
    gone = sorted(set(blocks) - alive)
    if gone:
        yield f"names of the gangs of attempts {named(gone, _NAMED)} in {hosts}"


def _folders(tasks: Path, before: float) -> Iterator[str]:
    found = [
        name
        for name in _listed(tasks)
        if is_being_created(name) and _touched_at(tasks / name) < before
    ]
    if found:
        yield f"folders that were not made or removed whole, {named(found, _NAMED)} in {tasks}"


def _mounts(tasks: Path) -> Iterator[str]:
    below = f"{tasks}/"
    try:
        # A user may have a mount point whose name is not UTF-8 or contains line breaks.
        lines = _MOUNTS.read_bytes().decode(errors="replace").split("\n")
    except OSError:
        return
    points = [line.split(" ")[1] for line in lines if line]
    found = [
        point
        for point in points
        if point.startswith(below) and not (tasks / point[len(below) :].split("/")[0]).exists()
    ]
    if found:
        yield f"mounts at {named(found, _NAMED)}"


def _cgroups() -> Iterator[str]:
    found = dead()
    if found:
        yield f"cgroups of shims that are dead, {named(found, _NAMED)}"


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_task(name: str) -> bool:
    try:
        parse_task_id(name)
    except BadId:
        return False
    return True


def _touched_at(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except OSError:
        return math.inf

"""Leftover units: of tasks whose directory is gone, because the state directory was removed or
replaced.

Because their shims live, the other checks do not count their processes as leftovers.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from agent.shims.backend import BOOTED
from agent.shims.systemd import ALL, folder_of

_ANSWER_S: Final = 10.0
_END_S: Final = 30.0
# A released shim exits shortly after its directory is removed.
_GOING_S: Final = 0.5
_NAMED: Final = 4


class LeftUnit(NamedTuple):
    """A unit, and the task directory that it was created for."""

    name: str
    folder: Path


def left_units() -> tuple[LeftUnit, ...]:
    """Return the leftover units of this machine, by name; none without systemd. Blocks."""
    found = _look()
    if found:
        time.sleep(_GOING_S)
        found &= _look()
    return tuple(sorted(found))


def stop(found: tuple[LeftUnit, ...]) -> list[str]:
    """Send SIGKILL to everything in them. Returns the names of units that remain. Blocks."""
    if not found:
        return []
    names = [unit.name for unit in found]
    _systemctl("kill", "--signal=SIGKILL", *names, patience_s=_ANSWER_S)
    _systemctl("stop", *names, patience_s=_END_S)
    still = {unit.name for unit in _look()}
    return [name for name in names if name in still]


def words(found: tuple[LeftUnit, ...]) -> str:
    """Return `muster-task-7-1-0.service (of /state/tasks/7.1.0)`, several with commas."""
    named = [f"{unit.name} (of {unit.folder})" for unit in found[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ", ".join(named + more)


def parse(text: str) -> dict[str, Path]:
    """Parse the output of `systemctl show`: unit name to task directory."""
    found = {}
    for block in text.split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        folder = folder_of(fields.get("Description", ""))
        if folder is not None and fields.get("ActiveState") not in ("inactive", "failed", None):
            found[fields.get("Id", "")] = folder
    return found


def _look() -> set[LeftUnit]:
    if not BOOTED.is_dir():
        return set()
    said = _systemctl("show", "--property=Id,Description,ActiveState", ALL, patience_s=_ANSWER_S)
    return {LeftUnit(name, path) for name, path in parse(said).items() if _gone(path)}


def _gone(folder: Path) -> bool:
    """True if the directory is gone. False if it cannot be seen."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _systemctl(verb: str, *arguments: str, patience_s: float) -> str:
    try:
        done = subprocess.run(
            ["systemctl", "--no-ask-password", verb, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")

"""GPU processes outside all jobs: started by hand, or survivors of a job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.shim.system.syscalls import state_of

# Process name of a shim.
SHIM: Final = "muster-shim"
_NAMED: Final = 3


def strangers(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the living processes without a shim among their ancestors.

    A process of a foreign pid namespace has no pid here, so nothing is known of it. A shim is the
    subreaper of all processes of its job.
    """
    return tuple(pid for pid in sorted(set(pids)) if _is_stranger(pid))


def used_by(pids: tuple[int, ...]) -> str:
    """Return `is used by process 12 (python), which is of no job`, or ""."""
    if not pids:
        return ""
    named = ", ".join(f"{pid} ({_name(pid)})" for pid in pids[:_NAMED])
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    one = len(pids) == 1
    return f"is used by process{'' if one else 'es'} {named}{more}, outside all jobs"


def _is_stranger(pid: int) -> bool:
    state = state_of(pid)
    if state is None or state[0] in "ZX":
        return False
    while state is not None:
        if _name(pid) == SHIM:
            return False
        pid = state[1]
        state = state_of(pid) if pid else None
    return True


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"

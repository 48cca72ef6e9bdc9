"""NUMA binding: check that the nodes of a gang can bind their ranks to CPUs."""

from __future__ import annotations

import re
from typing import Final

from muster.protocol.outcome import Cause, CauseCode, Outcome
from orchestrator.core.model.state import Attempt, Job, Task

SINCE: Final = (2, 9)
"""The first PyTorch whose torchrun has `--numa-binding`."""
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})")


def binding_refused(job: Job, attempt: Attempt) -> Cause | None:
    """Return why a gang that is ready cannot start. Returns None if it can.

    An unknown version is no reason to refuse: torchrun reports the problem itself.
    """
    chosen = job.spec.resources.numa_binding
    old = [] if chosen is None else [task for task in attempt.present if _too_old(task)]
    if chosen is None or not old:
        return None
    everywhere = len(old) == len(attempt.present)
    first = old[0]
    has = "" if first.prepared is None else first.prepared.fingerprint.torch
    where = f"{first.node} and all others have" if everywhere and len(old) > 1 else None
    text = (
        f"resources.numa_binding: {chosen.value} needs PyTorch {SINCE[0]}.{SINCE[1]} or newer, and "
        f"{where or f'{first.node} has'} {has}; give the job a newer one, or leave the key out"
    )
    return Cause(
        CauseCode.ARRANGE_FAILED,
        Outcome.NEVER_STARTED if everywhere else Outcome.INFRA,
        text,
        node=first.node,
        node_fault=not everywhere,
    )


def _too_old(task: Task) -> bool:
    torch = "" if task.prepared is None else task.prepared.fingerprint.torch
    found = _VERSION.match(torch)
    return found is not None and (int(found[1]), int(found[2])) < SINCE

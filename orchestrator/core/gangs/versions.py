"""Comparison of the Python, PyTorch, CUDA and NCCL versions on the nodes of a gang."""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Fingerprint
from orchestrator.core.model.state import Attempt

_WORDS: Final = (("python", "Python"), ("torch", "PyTorch"), ("cuda", "CUDA"), ("nccl", "NCCL"))


def odd_versions(attempt: Attempt) -> dict[TaskId, str]:
    """For each task whose node differs from the majority of its gang, a sentence on the versions.

    If two groups are of equal size, the first in node-rank order counts as the majority.
    """
    # The fingerprint is empty if no part of the job imports torch under Muster.
    known = [
        (task, task.prepared.fingerprint)
        for task in attempt.present
        if task.prepared is not None and task.prepared.fingerprint != Fingerprint()
    ]
    if not known:
        return {}
    usual, _ = Counter(versions for _, versions in known).most_common(1)[0]
    model = next(task.node for task, versions in known if versions == usual)
    return {
        task.id: f"{_differences(versions, usual, model)}; give all nodes of a gang the same"
        for task, versions in known
        if versions != usual
    }


def _differences(here: Fingerprint, usual: Fingerprint, model: str) -> str:
    differences = []
    for field, word in _WORDS:
        mine, theirs = getattr(here, field), getattr(usual, field)
        if mine != theirs:
            differences.append(
                f"{word} is {mine or 'missing'} and on {model} {theirs or 'missing'}"
            )
    return ", ".join(differences)

"""Reasons why a node is not eligible: a stable code and a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.spec.model import JobSpec
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.gpus import Holder

NO_TORCH: Final = "no_torch"


class Rejection(NamedTuple):
    """The reason why a node is not eligible: a stable code, and words that follow the node's name.

    `holders` are the attempts that hold the node or a part of it.
    """

    code: str
    words: str
    holders: tuple[Holder, ...] = ()

    @property
    def text(self) -> str:
        # Computed on demand, because most rejections are never shown.
        match self.code:
            case "busy" if self.holders:
                return f"runs {jobs_named(self.holders)}"
            case "gpus_busy" | "cpu_busy" | "memory_busy":
                has = "has" if len({job for job, _ in self.holders}) == 1 else "have"
                return f"{self.words}: {jobs_named(self.holders)} {has} the rest"
            case _:
                return self.words

    def __str__(self) -> str:
        return self.text


def starts_nothing(node: Node) -> Rejection | None:
    """Return why no task of any job can start on the node, as its agent reports it."""
    if node.refuses_jobs:
        return Rejection("refuses_jobs", f"refuses every job: {node.refuses_jobs}")
    bad = [disk.text for disk in node.disks if disk.full or disk.hangs]
    return Rejection("disk", f"has no disk for a task: {bad[0]}") if bad else None


def without_torch(node: Node) -> Rejection | None:
    """Return why jobs that name no interpreter have no torch on the node."""
    return (
        Rejection(NO_TORCH, f"has {node.no_torch}, and the job names no `python`")
        if node.no_torch
        else None
    )


def cannot_start(spec: JobSpec, node: Node) -> Rejection | None:
    """Return why no task of this job can start on the node, as its agent reports it."""
    rejection = starts_nothing(node)
    if rejection is None and node.no_torch and _needs_torch_of_node(spec):
        return without_torch(node)
    return rejection


def _needs_torch_of_node(spec: JobSpec) -> bool:
    """True if the job has torch only if the node's own interpreter has it. A job may bring torch
    with an interpreter, `setup` or PYTHONPATH, and then its start finds out."""
    if spec.python is not None or spec.setup is not None or not spec.launcher.torchruns:
        return False
    roles = (spec.env, spec.roles.launcher.env, spec.roles.worker.env)
    return not any("PYTHONPATH" in env for env in roles)


def jobs_named(holders: Iterable[Holder]) -> str:
    """`job 3`, or `jobs 3, 5 and 7`."""
    numbers = [str(job) for job in sorted({job for job, _ in holders})]
    if len(numbers) == 1:
        return f"job {numbers[0]}"
    more = f"{len(numbers) - 4} more" if len(numbers) > 5 else numbers.pop()
    return f"jobs {', '.join(numbers[:4])} and {more}"

"""Reasons why a node is not eligible: a stable code and a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.core.scheduling.gpus import Holder


class Rejection(NamedTuple):
    """Why a node is not eligible: a stable code, and words that follow the node's name.

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


def jobs_named(holders: Iterable[Holder]) -> str:
    """`job 3`, or `jobs 3, 5 and 7`."""
    numbers = [str(job) for job in sorted({job for job, _ in holders})]
    if len(numbers) == 1:
        return f"job {numbers[0]}"
    more = f"{len(numbers) - 4} more" if len(numbers) > 5 else numbers.pop()
    return f"jobs {', '.join(numbers[:4])} and {more}"

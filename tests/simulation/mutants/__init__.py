"""Planted bugs: each breaks a core in one place, and the simulator has to find it.

A checker that no planted bug sets off is not known to work. `ours` holds the bugs that the
simulator found in the cores themselves, so that they cannot come back unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from orchestrator.core.model.plan import DEFAULT_POLICY
from tests.simulation.cluster import STRICT, Cluster
from tests.simulation.world import COMPARED

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `breaks` are the violations it may cause, by their beginning; `seed` is a run
    that found it. With `backfill`, all pools of the world have it."""

    name: str
    patch: Patch
    breaks: tuple[str, ...]
    seed: int = 0
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """`tried` seeds were needed, the last of them included."""

    seed: int
    tried: int
    text: str


def run_seed(seed: int, *, backfill: bool = False) -> str | None:
    """Return the violation in this run, or None; the wall clock may change nothing (I9)."""
    policy = DEFAULT_POLICY if backfill else STRICT
    jumping = Cluster(seed, policy=policy)
    steady = Cluster(seed, wall_jumps=False, policy=policy)
    try:
        jumping.run()
        if seed % COMPARED == 0:
            steady.run()
            if steady.world.digest != jumping.world.digest:
                return "I9: with another wall clock the run is another"
    except Exception as error:  # noqa: BLE001 - what a broken core raises is a finding, too
        return f"{error}" if isinstance(error, AssertionError) else f"raised: {error!r}"
    return None


def hunt(mutant: Mutant, seeds: range) -> Found | None:
    """Plant the bug, and run seeds until one finds it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant.patch(monkeypatch)
        order = [mutant.seed, *(seed for seed in seeds if seed != mutant.seed)]
        for tried, seed in enumerate(order, 1):
            text = run_seed(seed, backfill=mutant.backfill)
            if text is not None:
                return Found(seed, tried, text)
    return None

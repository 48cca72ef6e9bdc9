"""Many short worlds with backfill: no promise is broken, and planted bugs are found."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.model.plan import Backfill, PoolPolicy
from tests.simulation.cluster import Cluster
from tests.simulation.mutants import Mutant, queued
from tests.simulation.test_backfill_worlds import lived

TROUBLE_S = 60.0
"""Most of a promise is made and moved in the first minute."""
BLOCK = 100
WORLDS = range(2000, 2500)


def short_world(seed: int) -> Cluster:
    mode = Backfill.EASY if seed % 5 == 0 else Backfill.CONSERVATIVE
    return Cluster(seed, policy=PoolPolicy(mode), shares_looks=True, trouble_s=TROUBLE_S)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(WORLDS.start, WORLDS.stop, BLOCK))
def test_promised_starts_are_kept_in_short_worlds(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        met += lived(short_world(seed))
    assert met["start_promised"] >= BLOCK, met
    assert met["start_moved"] >= BLOCK // 10, met


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", queued.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found_in_short_worlds(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.patch(monkeypatch)
    found = next((text for seed in WORLDS if (text := violation(seed))), "nothing")
    assert found.startswith(mutant.breaks), found


def violation(seed: int) -> str:
    """The violation in a short world, or ""."""
    try:
        short_world(seed).run()
    except AssertionError as error:
        return str(error)
    return ""

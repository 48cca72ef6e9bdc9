"""Many short worlds with backfill: no promise is broken, and planted bugs are found."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.model.plan import Backfill, PoolPolicy
from tests.simulation.cluster import Cluster
from tests.simulation.mutants import Mutant, queued
from tests.simulation.test_backfill_worlds import lived

TROUBLE_S = 40.0
"""Most promises are made and moved in the first minute."""
BLOCK = 50
WORLDS = range(2000, 2500)
FORMERLY_BROKEN = (
    (10132, 100.0),
    (10155, 100.0),
    (10264, 40.0),
    (10337, 100.0),
    (10348, 40.0),
    (10363, 100.0),
    (11152, 40.0),
    (11210, 40.0),
)
"""Seeds and seconds of trouble that found bugs of the plan or of the checkers."""


def short_world(seed: int, trouble_s: float = TROUBLE_S) -> Cluster:
    mode = Backfill.EASY if seed % 5 == 0 else Backfill.CONSERVATIVE
    return Cluster(seed, policy=PoolPolicy(mode), shares_looks=True, trouble_s=trouble_s)


@pytest.mark.parametrize(("seed", "trouble_s"), FORMERLY_BROKEN)
def test_a_world_that_found_a_bug_breaks_no_promise(seed: int, trouble_s: float) -> None:
    lived(short_world(seed, trouble_s))


# Far above the 20 s of processor time that a block takes, for machines under load.
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(WORLDS.start, WORLDS.stop, BLOCK))
def test_promised_starts_are_kept_in_short_worlds(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        met += lived(short_world(seed))
    assert met["start_promised"] >= BLOCK, met
    assert met["start_moved"] >= BLOCK // 10, met


@pytest.mark.long
@pytest.mark.timeout(1800)
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

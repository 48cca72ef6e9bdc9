"""Worlds with each kind of backfill: no promise is broken, and all comes to an end."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.model.plan import Backfill, PoolPolicy
from tests.simulation.cluster import Cluster

SEEDS = (*range(10), *range(300, 310), *range(400, 410))
FORMERLY_BROKEN = (
    145,
    504,
    537,
    1207,
    1224,
    1236,
    1288,
    1296,
    1355,
    1367,
    1436,
    1752,
    1774,
    1848,
    1875,
)
"""Seeds that found bugs of the plan or of the checkers."""


@pytest.mark.parametrize("mode", Backfill)
def test_promised_starts_are_kept(mode: Backfill) -> None:
    met: Counter[str] = Counter()
    for seed in (*SEEDS, *FORMERLY_BROKEN):
        # Seeds that once found a bug must replay the same run.
        shares = seed in SEEDS and seed % 2 == 1
        met += lived(Cluster(seed, policy=PoolPolicy(mode), shares_looks=shares))
    assert met["start_promised"] >= 20 or mode is Backfill.OFF, met
    assert met["look_shared"] > 0


def lived(cluster: Cluster) -> Counter[str]:
    """The counts of a world that comes to its end."""
    try:
        cluster.run()
    except Exception as error:
        raise AssertionError(f"seed {cluster.world.seed}: {error}") from error
    return cluster.world.met

"""Worlds in which every pool has backfill: no promise is broken, and all comes to an end."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.model.plan import Backfill, PoolPolicy
from tests.simulation.cluster import Cluster

SEEDS = (*range(10), *range(300, 310), *range(400, 410))


@pytest.mark.parametrize("mode", Backfill)
def test_promised_starts_are_kept(mode: Backfill) -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        cluster = Cluster(seed, backfill=PoolPolicy(mode))
        try:
            cluster.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += cluster.world.met
    assert met["start_promised"] >= 20, met

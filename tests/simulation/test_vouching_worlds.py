"""Worlds in which gangs vouch: long absences, cuts of every shape, drifting clocks, restarts."""

from __future__ import annotations

from collections import Counter

from tests.simulation.cluster import Cluster
from tests.simulation.vouching import ELASTIC, VOUCHING

CUTS = ("split", "alone", "coordinator", "one_way", "split_unseen")
SCENES = ("reboots", "is_cancelled", "ends_deaf", "restarts_alone")


def test_gangs_that_vouch_run_once_however_long_the_coordinator_is_away() -> None:
    met: Counter[str] = Counter()
    for seed in VOUCHING[-100::2]:
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += cluster.world.met
    for wanted in ("vouch", "long_absence", "over_lease", "lease_ended_task", "restore"):
        assert met[wanted] >= 20, (wanted, met)
    assert min(met[f"cut_{shape}"] for shape in CUTS) >= 20, met
    assert min(met[f"scene_{scene}"] for scene in SCENES) >= 10, met


def test_elastic_gangs_that_vouch_run_once() -> None:
    met: Counter[str] = Counter()
    for seed in ELASTIC[1::8]:
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += cluster.world.met
    assert met["vouch"] >= 20, met
    assert met["long_absence"] > 0, met

"""Worlds in which older backups are restored and nodes are rebooted in between."""

from __future__ import annotations

from collections import Counter

from tests.simulation.cluster import Cluster
from tests.simulation.restores import REBOOTED


def test_jobs_run_once_on_nodes_that_were_rebooted_between_backup_and_restore() -> None:
    met: Counter[str] = Counter()
    for seed in REBOOTED[4::6]:
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += cluster.world.met
    assert min(met["restore"], met["reboot_after_backup"]) >= 20, met
    assert met["restored_gang"] >= 5, met

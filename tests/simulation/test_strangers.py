"""No agent joins by a name that leads its peers elsewhere, whatever else goes wrong meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.link.control_channel import Refused
from orchestrator.core.engine import decide
from tests.simulation.cluster import Cluster
from tests.simulation.strangers import Strangers
from tests.simulation.world import Violation

SEEDS = range(12)


def run(seed: int) -> int:
    """Return the number of refused strangers. Raises Violation."""
    cluster = Cluster(seed)
    strangers = Strangers(cluster)
    cluster.run()
    return strangers.refused


@pytest.mark.parametrize("seed", SEEDS)
def test_a_name_that_leads_elsewhere_is_refused(seed: int) -> None:
    assert run(seed) > 0


def test_a_coordinator_that_takes_any_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = vars(decide)["refuse"]

    def refuse(*words: Any) -> Refused | None:
        refused: Refused | None = real(*words)
        return None if refused is not None and refused.code == "bad_name" else refused

    monkeypatch.setattr(decide, "refuse", refuse)
    with pytest.raises(Violation, match="hosts: a node is called"):
        sum(map(run, SEEDS))

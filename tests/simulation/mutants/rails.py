"""Planted bugs of the fabric plan."""

from __future__ import annotations

from typing import Any

from orchestrator.core import fabric, follow
from orchestrator.core.fabric_rails import Rails
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put, _wrap


def _all_agree(real: Any) -> Any:
    def rails_of(*args: Any) -> Rails:
        found: Rails = real(*args)
        found.differences.clear()
        found.agreed = [at for at, ports in enumerate(found.ports) if all(ports)]
        return found

    return rails_of


MUTANTS = (
    Mutant("a gang has no fabric plan", _put(follow, "plan_for", lambda *_: None), ("rails",), 352),
    Mutant(
        "rails whose ports differ are used", _wrap(fabric, "rails_of", _all_agree), ("rails",), 363
    ),
    Mutant(
        "a node that has no RDMA is taken into the plan",
        _put(fabric, "lack", lambda _: None),
        ("rails", "raised"),
        355,
    ),
)

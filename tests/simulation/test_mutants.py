"""Every planted bug is found within a few seeds: proof that the checkers check."""

from __future__ import annotations

import pytest

from tests.simulation.cards import FIRST_SHARED
from tests.simulation.draining import FIRST_DRAINED
from tests.simulation.faults import Swarm
from tests.simulation.jobs import FIRST_VARIED
from tests.simulation.mutants import Mutant, hunt, run_seed
from tests.simulation.mutants.every import EVERY
from tests.simulation.mutants.links import stumbles_as_it_asks
from tests.simulation.rails import FIRST_RAILED
from tests.simulation.restores import REBOOTED, RESTORED
from tests.simulation.steering import FIRST_STEERED
from tests.simulation.vouching import VOUCHING

SEEDS = range(40)
"""Tried where the seed that once found the bug does so no more: the simulator has changed.
`python -m tests.simulation.mutants` finds new ones."""

VARIED = range(FIRST_VARIED, FIRST_VARIED + 40)
"""Seeds for bugs that need a gang of another kind."""

STEERED = range(FIRST_STEERED, FIRST_STEERED + 40)
"""Seeds for bugs that need users who change their minds."""

DRAINED = range(FIRST_DRAINED, FIRST_DRAINED + 40)
"""Seeds for bugs that need operators."""

SHARED = range(FIRST_SHARED, FIRST_SHARED + 40)
"""Seeds for bugs that need jobs that share nodes."""

RAILED = range(FIRST_RAILED, FIRST_RAILED + 40)
"""Seeds for bugs that need machines with HCAs."""


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    steered, varied = mutant.seed >= FIRST_STEERED, mutant.seed >= FIRST_VARIED
    railed, drained = mutant.seed >= FIRST_RAILED, mutant.seed >= FIRST_DRAINED
    shared = mutant.seed >= FIRST_SHARED
    if mutant.seed in RESTORED:
        order = RESTORED
    elif mutant.seed in REBOOTED:
        order = REBOOTED
    elif mutant.seed in VOUCHING:
        order = VOUCHING
    elif shared:
        order = DRAINED if drained else RAILED if railed else SHARED
    else:
        order = STEERED if steered else VARIED if varied else SEEDS
    found = hunt(mutant, order)
    assert found is not None, "no seed has found it"
    assert found.text.startswith(mutant.breaks), f"seed {found.seed} found something else: {found}"


@pytest.mark.parametrize("seed", sorted({it.seed for it in EVERY if not it.backfill}))
def test_without_the_bug_its_seed_is_clean(seed: int) -> None:
    assert run_seed(seed) is None


@pytest.mark.parametrize("seed", sorted({it.seed for it in EVERY if it.backfill}))
def test_without_the_bug_its_seed_is_clean_with_backfill(seed: int) -> None:
    assert run_seed(seed, backfill=True) is None


def test_an_agent_that_is_stopped_as_it_asks_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Swarm, "agent_stumble", stumbles_as_it_asks(None))
    assert [run_seed(seed) for seed in (103, 131)] == [None, None]


def test_no_bug_is_planted_twice() -> None:
    assert len({mutant.name for mutant in EVERY}) == len(EVERY)

"""`python -m tests.simulation.mutants [SEEDS]`: which seed finds each planted bug."""

from __future__ import annotations

import sys

from tests.simulation.mutants import hunt
from tests.simulation.mutants.every import EVERY


def main() -> int:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
    unfound = 0
    for mutant in EVERY:
        found = hunt(mutant, seeds)
        if found is None:
            unfound += 1
            print(f"NOT FOUND in {len(seeds)} seeds: {mutant.name}", flush=True)
            continue
        wrong = "" if found.text.startswith(mutant.breaks) else f"EXPECTED {mutant.breaks}: "
        print(
            f"{found.tried:4} {found.seed:5} {mutant.name}: {wrong}{found.text[:150]}", flush=True
        )
    return min(unfound, 1)


if __name__ == "__main__":
    sys.exit(main())

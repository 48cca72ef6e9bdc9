"""`python -m tests.storm --minutes N [--seed S]`: a storm of random faults, and its judgement.

Needs root. Exit code 0: every promise was kept; 1: one was broken, and the folder that says how is
kept and named; 3: there can be no machines here.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from examples.rig.rig import missing
from tests.storm.storm import Storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, help="the sequence of faults; by chance")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    chosen = parser.parse_args()
    if why := missing():
        print(f"storm: {why}", file=sys.stderr)
        return 3
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    root = Path(tempfile.mkdtemp(prefix="muster-storm-"))
    print(f"storm: seed {seed}, {chosen.minutes:g} minutes, in {root}", file=sys.stderr)
    report = Storm(root, seed, chosen.minutes * 60).run()
    print(report.text())
    if report.violations or chosen.keep:
        print(f"what happened is in {root}/storm.jsonl, what daemons wrote in {root}/cluster/logs")
    else:
        shutil.rmtree(root)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())

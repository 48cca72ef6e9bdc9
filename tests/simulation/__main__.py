"""`python -m tests.simulation SEED [-v]` replays one run; `--seeds A:B` goes through many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.cluster import Cluster

FAILURES_MAX = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the transcript")
    parser.add_argument("--seeds", help="FIRST:END, without END itself")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failing seed")
    parser.add_argument("--met", action="store_true", help="print how often each thing happened")
    parser.add_argument("--digests", action="store_true", help="print each run's digest")
    options = parser.parse_args()
    if options.seeds:
        first, _, end = options.seeds.partition(":")
        seeds = range(int(first), int(end))
    elif options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        parser.error("which SEED, or which --seeds FIRST:END?")
    return run(seeds, options)


def run(seeds: range, options: argparse.Namespace) -> int:
    """Run them all; returns how many failed (1 is enough without --keep-going)."""
    began = time.perf_counter()
    failed, steps, virtual_s, done = 0, 0, 0.0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        cluster = Cluster(seed, verbose=options.verbose)
        world = cluster.world
        try:
            cluster.run()
        except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding
            failed += 1
            _print_failure(cluster, error, whole=not options.keep_going and not options.verbose)
        done += 1
        steps += world.steps
        virtual_s += world.now
        counts += world.met
        if failed and (not options.keep_going or failed >= FAILURES_MAX):
            break
        if len(seeds) == 1 or options.digests:
            print(f"seed {seed}: digest {world.digest}")
    took_s = time.perf_counter() - began
    print(
        f"{done} seeds, {failed} failed, {steps:,} core steps, {virtual_s / 3600:.0f} virtual "
        f"hours in {took_s:.1f} s = {steps / took_s:,.0f} steps/s"
    )
    if options.met:
        for kind, count in sorted(counts.items()):
            print(f"{count:9,} {kind}")
    return failed


def _print_failure(cluster: Cluster, error: Exception, *, whole: bool) -> None:
    world = cluster.world
    if whole:
        print("\n".join(world.lines))
        if not isinstance(error, AssertionError):
            traceback.print_exception(error)
    print(f"seed {world.seed} failed at {world.now:.3f} s: {type(error).__name__}: {error}")
    print(f"replay: python -m tests.simulation {world.seed} -v", flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))

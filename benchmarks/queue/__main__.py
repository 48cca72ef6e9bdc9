"""Cost of the passes over a long queue: 500 nodes, 10,000 waiting jobs, 100 promised starts.

A pass looks at the queue in slices; between two of them, the coordinator reads its messages. Times
are of the processor.

With --quality: how long jobs wait with backfill and without, in virtual time on 64 nodes of 8 GPUs,
with two workloads at three loads.

With --slurm: a window of 300 jobs on 32 nodes by a real Slurm, with 30 seconds of the jobs in each
second, and by ours in virtual time. It takes about 15 minutes, most of them asleep.

The exit status of both is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.launch import slurm
from benchmarks.launch.report import machine, table, write_json
from benchmarks.queue import cost, quality, slurm_window


def main() -> int:
    args = _arguments()
    if args.quality:
        return _quality(args)
    if args.slurm:
        return _slurm(args)
    where = machine()
    rows = cost.measure(args.seed, args.nodes, args.queued, args.events)
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def _quality(args: argparse.Namespace) -> int:
    found = quality.measure(args.seeds, args.jobs, quality.NODES, quality.LOADS, args.workers)
    print(quality.table(found))
    missed = quality.missed(found)
    print("", *(missed or ["all goals are met"]), sep="\n")
    if args.json is not None:
        args.json.write_text(json.dumps(quality.rows(found), indent=1) + "\n")
    return 1 if missed else 0


def _slurm(args: argparse.Namespace) -> int:
    if not slurm.installed():
        print(slurm.how_to_install())
        return 1
    found, extra_s = slurm_window.measure(args.seed, args.jobs or slurm_window.JOBS)
    print(slurm_window.table(found))
    held = f"a job held its nodes for {max(0.0, extra_s):.0f} s besides its run time"
    print(f"\n{slurm.version()}; {held}")
    missed = slurm_window.missed(found)
    print(*(missed or ["the goal is met"]), sep="\n")
    if args.json is not None:
        found_rows = {policy: it._asdict() for policy, it in found.items()}
        args.json.write_text(json.dumps(found_rows, indent=1) + "\n")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench queue", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--nodes", type=int, default=cost.NODES, metavar="N")
    parser.add_argument("--queued", type=int, default=cost.QUEUED, metavar="N")
    parser.add_argument("--events", type=int, default=cost.EVENTS, metavar="N")
    parser.add_argument("--quality", action="store_true", help="measure waits, not the cost")
    parser.add_argument("--slurm", action="store_true", help="compare a window with Slurm's")
    parser.add_argument("--seeds", type=int, default=quality.SEEDS, metavar="N")
    parser.add_argument("--jobs", type=int, metavar="N", help="of a workload")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of --quality")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

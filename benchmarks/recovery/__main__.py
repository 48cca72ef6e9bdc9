"""The recovery benchmark: losses and times, compared with Slurm and plain torchrun."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

import structlog

from benchmarks.launch import slurm
from benchmarks.launch.cluster import Wrong
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Row
from benchmarks.recovery import ends, restarts, submits
from examples.local_cluster import ClusterError

FIGURES = ("submits", "coordinator", "agent", "rank-death", "cancel")


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Silence the simulated agents of this process.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    where = machine()
    where["slurm"] = slurm.version() if slurm.installed() else "-"
    rows: list[Row] = []
    notes: list[str] = [] if slurm.installed() else [slurm.how_to_install()]
    code = 0
    try:
        for figure in args.only or FIGURES:
            print(f"measuring {figure}", file=sys.stderr, flush=True)
            rows += _measure(figure, quick=args.quick)
    except KeyboardInterrupt:
        notes.append("interrupted: what had been measured in full is above")
        code = 130
    except (ClusterError, Wrong, RuntimeError) as error:
        notes.append(f"stopped: {error}")
        code = 1
    print(table(where, rows, notes))
    if args.json is not None:
        write_json(args.json, where, rows, notes)
    return code


def _measure(figure: str, *, quick: bool) -> list[Row]:
    peers = slurm.installed()
    match figure:
        case "submits":
            rows = [submits.ours(3 if quick else 50)]
            return [*rows, submits.peer(1 if quick else 5)] if peers else rows
        case "coordinator":
            rows = restarts.coordinator(2 if quick else 20)
            return [*rows, restarts.coordinator_peer(2 if quick else 10)] if peers else rows
        case "agent":
            return restarts.agent(2 if quick else 20)
        case "rank-death":
            by_hand = ends.rank_death_torchrun(1 if quick else 5)
            return [ends.rank_death(2 if quick else 20), *([by_hand] if by_hand else [])]
        case "cancel":
            rows = [ends.cancel(3 if quick else 30)]
            return [*rows, ends.cancel_peer(2 if quick else 10)] if peers else rows
        case _:
            raise AssertionError(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work, roughly")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

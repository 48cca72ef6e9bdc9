"""The launch benchmark: every figure beside its peer's, in one table."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.launch import all_reduce, command_line, gang, nccl, slurm, throughput
from benchmarks.launch.cluster import Wrong
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Row
from examples.local_cluster import ClusterError

FIGURES = ("gang", "cli", "throughput", "all-reduce", "nccl")


def main() -> int:
    args = _arguments()
    # SIGTERM from a supervisor must clean up like Ctrl-C, also in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    where["slurm"] = slurm.version() if slurm.installed() else "-"
    rows: list[Row] = []
    notes: list[str] = [] if slurm.installed() else [slurm.how_to_install()]
    code = 0
    try:
        for figure in args.only or FIGURES:
            print(f"measuring {figure}", file=sys.stderr, flush=True)
            found, said = _measure(figure, args)
            rows += found
            notes += said
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


def _measure(figure: str, args: argparse.Namespace) -> tuple[list[Row], list[str]]:
    quick = args.quick
    match figure:
        case "gang":
            return gang.measure(10 if quick else 50)
        case "cli":
            return command_line.measure(5 if quick else 20)
        case "throughput":
            return throughput.measure(1 if quick else 5, 100 if quick else 400, 40)
        case "all-reduce":
            return all_reduce.measure(
                args.pairs or (4 if quick else 10), args.case or all_reduce.CASES
            )
        case "nccl":
            return nccl.measure(args.pairs or (4 if quick else 10))
        case _:
            raise AssertionError(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work, roughly")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure; repeatable")
    parser.add_argument(
        "--case", action="append", choices=all_reduce.CASES, help="of all-reduce; repeatable"
    )
    parser.add_argument("--pairs", type=int, help="of all-reduce and nccl: runs; default 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Cost of the passes over a long queue: 500 nodes, 10,000 waiting jobs, 100 promised starts.

A pass looks at the queue in slices; between two of them, the coordinator reads its messages. Times
are of the processor.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.launch.report import machine, table, write_json
from benchmarks.queue import cost


def main() -> int:
    args = _arguments()
    where = machine()
    rows = cost.measure(args.seed, args.nodes, args.queued, args.events)
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench queue", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--nodes", type=int, default=cost.NODES, metavar="N")
    parser.add_argument("--queued", type=int, default=cost.QUEUED, metavar="N")
    parser.add_argument("--events", type=int, default=cost.EVENTS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

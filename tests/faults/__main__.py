"""Generator of docs/reference/fault-matrix.md: `python -m tests.faults --page`."""

from __future__ import annotations

import argparse
import sys

from tests.faults.page import PAGE, page
from tests.faults.record import read
from tests.faults.table import faults, named


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}, do not print it")
    text = page(faults(), named(), read())
    if parser.parse_args().page:
        PAGE.write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.orchestrator.late_clock`: a real coordinator whose wall clock is ahead by the
seconds in the file that AHEAD names."""

import os
import sys
from pathlib import Path
from typing import Final

from muster.daemon.clock import SystemClock
from muster.protocol.instant import Instant
from orchestrator.__main__ import main

AHEAD: Final = "CLOCK_AHEAD"


def put_ahead(file: Path) -> None:
    real = SystemClock.now

    def now(self: SystemClock) -> Instant:
        moment = real(self)
        return Instant(moment.mono, moment.wall + float(file.read_text()))

    SystemClock.now = now  # type: ignore[method-assign]


if __name__ == "__main__":
    put_ahead(Path(os.environ[AHEAD]))
    sys.exit(main())

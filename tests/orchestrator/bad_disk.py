"""`python -m tests.orchestrator.bad_disk`: a real coordinator whose journal has a disk that fails.

What the disk does is in the file that DISK names: `slow SECONDS`, a commit that takes so long;
`fails`, one whose fsync fails. Nothing else of the coordinator is changed.
"""

import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

from orchestrator.__main__ import main
from orchestrator.journal.journal import Journal

DISK: Final = "BAD_DISK"


class Database:
    """The connection of the journal, on that disk."""

    def __init__(self, database: sqlite3.Connection, disk: Path) -> None:
        self._database = database
        self._disk = disk

    def execute(self, text: str, *given: Any) -> sqlite3.Cursor:
        if text == "COMMIT" and self._disk.exists():
            what, _, seconds = self._disk.read_text().partition(" ")
            if what == "fails":
                self._database.execute("ROLLBACK")
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            time.sleep(float(seconds))
        return self._database.execute(text, *given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def spoil(disk: Path) -> None:
    opened = Journal.__init__

    def on_that_disk(self: Journal, *given: Any) -> None:
        opened(self, *given)
        self._database = Database(self._database, disk)  # type: ignore[assignment]

    Journal.__init__ = on_that_disk  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    spoil(Path(os.environ[DISK]))
    sys.exit(main())

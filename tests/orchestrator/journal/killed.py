"""Work on a journal in a process that is killed before a given operation on its disk."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from muster.daemon import durable_files
from orchestrator.journal import backup, mark, schema

# More operations than any work has.
FAR: Final = 1_000


class Moments:
    """Counts what is done to the disk, and kills this process before a given one."""

    def __init__(self, last: int) -> None:
        self.left = last

    def pass_one(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Statements, also those within a script, and all that is done to files."""
        connect = sqlite3.connect

        def traced(*arguments: Any, **more: Any) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*arguments, **more)
            database.set_trace_callback(self.pass_one)
            return database

        sqlite3.connect = traced  # type: ignore[assignment]
        for module, names in (
            (os, ("rename", "replace", "unlink", "fsync")),
            (shutil, ("copyfile",)),
            (backup, ("sync_file", "sync_directory")),
            (mark, ("sync_file", "sync_directory")),
            (schema, ("sync_file", "sync_directory")),
            (durable_files, ("sync_file", "sync_directory")),
        ):
            for name in names:
                setattr(module, name, self.before(getattr(module, name)))

    def before(self, done: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **more: Any) -> Any:
            self.pass_one()
            return done(*arguments, **more)

        return instead


def killed_at(moment: int, work: Callable[[], object]) -> bool:
    """Do it in a process that is killed at that moment; False where it was done before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            Moments(moment).watch()
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0

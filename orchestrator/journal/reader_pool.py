"""Pool of connections that read a journal beside its writer. Opening one costs more than most
queries.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from orchestrator.journal.errors import JournalError

_T = TypeVar("_T")
_THREADS: Final = 2


class ReaderPool:
    """At most two connections, each used by one query at a time, created on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="journal-reader")

    async def read(self, look: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return the result of `look`, which sees only committed data. Raises JournalError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, look)

    def close(self) -> None:
        """Wait for running queries, then close all. Safe to call twice."""
        self._threads.shutdown()
        while self._idle:
            self._idle.pop().close()

    def _read(self, look: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            try:
                database = self._idle.pop()
            except IndexError:
                database = read_only(self._path, check_same_thread=False)
            try:
                found = look(database)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    database.close()
                raise
        except sqlite3.Error as error:
            raise JournalError(f"{self._path} cannot be read ({error})") from error
        self._idle.append(database)
        return found


def read_only(path: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open a second connection beside that of the running coordinator."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, check_same_thread=check_same_thread)


def frozen(path: Path) -> sqlite3.Connection:
    """Open a database file alone: an existing log is ignored, and none is created."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)

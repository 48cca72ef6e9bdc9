"""Journals as older releases left them."""

import contextlib
import sqlite3
from pathlib import Path


def age(file: Path, layout: int) -> None:
    """Make the journal in `file`, whose archive is empty, one of an older layout."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        if layout < 3:
            for table in ("history", "archived", "tally"):
                database.execute(f"DROP TABLE {table}")
            database.execute("DELETE FROM meta WHERE name = 'moved'")
        if layout < 2:
            database.execute("ALTER TABLE fact DROP COLUMN crc")
        database.execute(f"PRAGMA user_version = {layout}")

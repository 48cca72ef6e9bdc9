"""Index of the users' references to content: the chunks and bundles that each has uploaded.

A user may refer only to these. The index is no fact: without it, users upload again.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from muster.daemon.errors import DaemonError, FileError

_SCHEMA: Final = """
CREATE TABLE chunks (
    user TEXT, sha256 TEXT, size INTEGER, seen REAL, PRIMARY KEY (user, sha256)
) WITHOUT ROWID;
CREATE TABLE bundles (
    user TEXT, sha256 TEXT, files INTEGER, bytes INTEGER, stored INTEGER, seen REAL,
    PRIMARY KEY (user, sha256)
) WITHOUT ROWID;
"""
_OLD: Final = "DROP TABLE IF EXISTS chunks; DROP TABLE IF EXISTS bundles;"
_VERSION: Final = 2
_PARAMETERS: Final = 500
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_ROOM_BYTES: Final = 1 << 20
"""With less on its disk, an I/O error of SQLite means that the disk is full."""

_log = structlog.get_logger("muster.bundles")


class StoredContent(NamedTuple):
    """Files in the store to which a user refers, and their bytes."""

    files: int
    bytes: int


class Bundle(NamedTuple):
    """A bundle that a user has uploaded whole."""

    files: int
    bytes: int


class StoreFullError(DaemonError):
    """There is no room for more content, or for the index."""


class References:
    """The index, in one file. Thread-safe; the methods wait for the disk, and raise FileError and
    StoreFullError.

    A damaged file is put aside. Without room for the file, the next call tries again.
    """

    def __init__(self, path: Path, seen_s: float) -> None:
        """A use is recorded unless one was within the last `seen_s`, because thousands of records
        for each submit wait for the disk."""
        self._path = path
        self._seen_s = seen_s
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        try:
            with self._open():
                pass
        except (FileError, StoreFullError) as error:
            _log.error("bundle_index_not_open", why=str(error), again="with the next request")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._db is None:
                    self._db = _opened(self._path)
                yield self._db
            except sqlite3.Error as error:
                raise self._explained(error) from error
            except OSError as error:
                raise FileError(f"the index {self._path} cannot be used: {error}") from error

    def _explained(self, error: sqlite3.Error) -> DaemonError:
        """Return what an error means. A damaged file is put aside."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGED and self._db is not None:
            self._db.close()
            self._db = None
            _put_aside(self._path, error)
            return FileError(f"the index {self._path} was damaged and is put aside: {error}")
        if code == sqlite3.SQLITE_FULL or _is_full(self._path.parent):
            return StoreFullError(f"the disk of {self._path} is full: {error}")
        return FileError(f"the index {self._path} cannot be used: {error}")

    @contextmanager
    def _write(self, *, later: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit what is done in the context. `later`: the next commit syncs it to disk."""
        with self._open() as db:
            db.execute(f"PRAGMA synchronous = {'NORMAL' if later else 'FULL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                with suppress(sqlite3.Error):
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def sizes(self, user: str, chunks: Sequence[str], now: float) -> dict[str, int]:
        """Return the sizes of those of `chunks` to which the user refers; they were seen now."""
        have: dict[str, int] = {}
        with self._write() as db:
            for part in _parts(chunks):
                marks = ",".join("?" * len(part))
                where = f"user = ? AND sha256 IN ({marks})"
                rows = db.execute(
                    f"SELECT sha256, size, seen FROM chunks WHERE {where}",  # noqa: S608
                    (user, *part),
                ).fetchall()
                have.update((chunk, size) for chunk, size, _ in rows)
                db.executemany(
                    "UPDATE chunks SET seen = ? WHERE user = ? AND sha256 = ?",
                    [(now, user, chunk) for chunk, _, seen in rows if seen < now - self._seen_s],
                )
        return have

    def add(self, user: str, chunks: Iterable[tuple[str, int]], now: float) -> None:
        """Record that the user has uploaded these chunks, given with their sizes. It is on disk
        with the next bundle: before, the loss of it costs another upload, and nothing else."""
        with self._write(later=True) as db:
            db.executemany(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?)",
                [(user, chunk, size, now) for chunk, size in chunks],
            )

    def held(self, user: str) -> StoredContent:
        """Return what the user's chunks and manifests take."""
        with self._open() as db:
            row = db.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM ("
                "SELECT size FROM chunks WHERE user = ?1 UNION ALL "
                "SELECT stored FROM bundles WHERE user = ?1)",
                (user,),
            ).fetchone()
        return StoredContent(*row)

    def add_bundle(self, user: str, sha256: str, bundle: Bundle, stored: int, now: float) -> None:
        """Record that the user has uploaded a bundle, whose manifest has `stored` bytes."""
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO bundles VALUES (?, ?, ?, ?, ?, ?)",
                (user, sha256, bundle.files, bundle.bytes, stored, now),
            )

    def bundle(self, user: str, sha256: str, now: float) -> Bundle | None:
        """Return a bundle of the user, which was seen now; None without a reference to it."""
        with self._write() as db:
            found = db.execute(
                "SELECT files, bytes, seen FROM bundles WHERE user = ? AND sha256 = ?",
                (user, sha256),
            ).fetchone()
            if found is not None and found[2] < now - self._seen_s:
                db.execute(
                    "UPDATE bundles SET seen = ? WHERE user = ? AND sha256 = ?",
                    (now, user, sha256),
                )
        return None if found is None else Bundle(*found[:2])

    def forget_content(self, chunk: str, bundles: Iterable[str]) -> None:
        """Drop all references to a chunk whose content is lost, and to the bundles that have it:
        each is complete again once its user has sent what is missing."""
        with self._write() as db:
            db.execute("DELETE FROM chunks WHERE sha256 = ?", (chunk,))
            db.executemany("DELETE FROM bundles WHERE sha256 = ?", [(each,) for each in bundles])

    def forget_bundles(self, bundles: Iterable[str]) -> None:
        """Drop all references to bundles whose manifest is lost."""
        with self._write() as db:
            db.executemany("DELETE FROM bundles WHERE sha256 = ?", [(each,) for each in bundles])

    def drop_old(self, before: float, kept: Iterable[str]) -> set[str]:
        """Drop bundles not seen since `before`, except those in `kept`; return the others."""
        with self._write() as db:
            live = set(kept)
            rows = db.execute("SELECT user, sha256, seen FROM bundles").fetchall()
            old = [(u, sha) for u, sha, seen in rows if seen < before and sha not in live]
            db.executemany("DELETE FROM bundles WHERE user = ? AND sha256 = ?", old)
            return live | {sha for u, sha, seen in rows if seen >= before}

    def bundles(self, user: str) -> dict[str, float]:
        """Return the user's bundles, and when each was used last."""
        with self._open() as db:
            rows = db.execute("SELECT sha256, seen FROM bundles WHERE user = ?", (user,))
            return dict(rows.fetchall())

    def drop(self, user: str, bundles: Iterable[str], before: float, kept: set[str]) -> None:
        """Drop a user's references to these bundles, and those to chunks not seen since `before`,
        except to `kept`."""
        with self._write() as db:
            db.executemany(
                "DELETE FROM bundles WHERE user = ? AND sha256 = ?",
                [(user, sha256) for sha256 in bundles],
            )
            rows = db.execute(
                "SELECT sha256 FROM chunks WHERE user = ? AND seen < ?", (user, before)
            ).fetchall()
            db.executemany(
                "DELETE FROM chunks WHERE user = ? AND sha256 = ?",
                [(user, sha256) for (sha256,) in rows if sha256 not in kept],
            )

    def drop_chunks(self, before: float, kept: set[str]) -> set[str]:
        """Drop references not seen since `before`, except to `kept`; return the chunks that anyone
        still refers to."""
        with self._write() as db:
            rows = db.execute("SELECT user, sha256, seen FROM chunks").fetchall()
            old = [(u, sha) for u, sha, seen in rows if seen < before and sha not in kept]
            db.executemany("DELETE FROM chunks WHERE user = ? AND sha256 = ?", old)
            return {sha for _, sha, seen in rows if seen >= before or sha in kept}


def _opened(path: Path) -> sqlite3.Connection:
    try:
        return _connected(path)
    except sqlite3.OperationalError:  # such as a full disk
        raise
    except sqlite3.DatabaseError as error:
        _put_aside(path, error)
        return _connected(path)


def _put_aside(path: Path, error: sqlite3.Error) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    _log.error("bundle_index_damaged", why=str(error), kept_as=str(aside))
    os.replace(path, aside)
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def _is_full(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _ROOM_BYTES or bool(disk.f_files and not disk.f_favail)


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:  # else nothing is written: the disk may be full
            db.executescript(f"{_OLD} {_SCHEMA} PRAGMA user_version = {_VERSION};")
    except BaseException:
        db.close()
        raise
    return db


def _parts(chunks: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(chunks), _PARAMETERS):
        yield chunks[at : at + _PARAMETERS]

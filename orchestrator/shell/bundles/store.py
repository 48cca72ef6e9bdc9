"""Content of bundles on the coordinator's disk: chunks and manifests, each named by its SHA-256.

Content is written to a temporary name, synced, and renamed. It is shared among users; who may refer
to it is in `References`.
"""

import contextlib
import ctypes
import errno
import hashlib
import hmac
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.bundle.manifest import BadManifestError, CodeManifest, decode, digest
from muster.bundle.pack import unpack
from muster.daemon.durable_files import sync_directory, sync_file, write_atomic
from muster.daemon.errors import DaemonError, FileError
from orchestrator.shell.bundles.references import Bundle, References, StoreFullError

_INCOMING: Final = "incoming"
_CHUNKS: Final = "chunks"
_MANIFESTS: Final = "manifests"
_KEY: Final = "ticket.key"
_KEY_BYTES: Final = 32
_FEW: Final = 64
INODES_LEFT: Final = 20
"""The part of the disk's inodes that uploads leave free, as a divisor."""
_SHORT_KEEP_S: Final = 3600.0
"""Seconds for which unused content is kept if the disk is short, or the user's quota."""
_SEEN_S: Final = 300.0
"""Code that is kept for a time after its last use may go so much earlier."""

_log = structlog.get_logger("muster.bundles")


class BundleLimits(msgspec.Struct, frozen=True):
    """Bytes of one bundle, of all chunks of a user, and those that stay free on the disk; seconds
    for which unused content is kept. `user_files` is the number of chunks and manifests of a
    user."""

    bundle_bytes: int
    user_bytes: int
    free_bytes: int
    keep_s: float
    user_files: int = 1_000_000


class QuotaError(DaemonError):
    """The code is too large."""


class FullQuotaError(QuotaError):
    """The user's content has reached its limit."""


class BundleStore:
    """The store in one directory. The methods wait for the disk: call them from a thread."""

    def __init__(self, folder: Path, limits: BundleLimits) -> None:
        """Create what is missing, and remove what an interrupted upload left. Raises FileError."""
        self.limits = limits
        self._folder = folder
        self._chunks = str(folder / _CHUNKS)
        self._change = threading.Lock()
        self._arriving: Counter[str] = Counter()
        try:
            shutil.rmtree(folder / _INCOMING, ignore_errors=True)
            for name in (_INCOMING, _CHUNKS, _MANIFESTS):
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = self._ticket_key()
        except OSError as error:
            raise FileError(f"{error.filename} cannot be made: {error.strerror}") from error
        self._references = References(
            folder / "references.sqlite3", min(_SEEN_S, limits.keep_s / 20)
        )

    def close(self) -> None:
        """Close the index."""
        self._references.close()

    def missing(self, user: str, chunks: Sequence[str], now: float) -> list[str]:
        """Return those of `chunks` that the user has not uploaded."""
        have = self._references.sizes(user, chunks, now)
        return [chunk for chunk in chunks if chunk not in have]

    def bundle(self, user: str, sha256: str, now: float) -> Bundle | None:
        """Return a bundle to which the user may refer, or None."""
        return self._references.bundle(user, sha256, now)

    def share(self, owner: str, user: str, sha256: str, now: float) -> bool:
        """Let `user` refer to a bundle of `owner`'s job. Returns False if its content is gone."""
        found = self._references.bundle(owner, sha256, now)
        if found is not None:
            # The owner has uploaded the manifest, and it counts as theirs alone.
            self._references.add_bundle(user, sha256, found, 0, now)
        return found is not None

    def put(self, user: str, data: bytes | bytearray | memoryview, now: float) -> int:
        """Store a pack of chunks, on disk when this returns. Returns their number. Raises
        BadPackError, QuotaError and StoreFullError; then nothing of it is kept."""
        self._check_room(len(data))
        self._check_quota(user, len(data))
        incoming = self._folder / _INCOMING / secrets.token_hex(8)
        written: dict[str, int] = {}
        try:
            incoming.mkdir(mode=0o700)
            for chunk, content in unpack(data):
                if chunk not in written:
                    _write(f"{incoming}/{chunk}", content)
                    written[chunk] = len(content)
            with self._arrival(written):
                self._rename(incoming, written)
                # Another pack is written meanwhile.
                self._sync_stored(written)
                with self._change:
                    self._references.add(user, written.items(), now)
        except OSError as error:
            raise _full_or(error, self._folder) from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return len(written)

    def _rename(self, incoming: Path, chunks: Collection[str]) -> None:
        with self._change:
            there = os.listdir(self._folder / _CHUNKS)
            for name in {chunk[:2] for chunk in chunks}.difference(there):
                (self._folder / _CHUNKS / name).mkdir(mode=0o700)
            # Replace content to which users may already refer with the copy on disk. Rename the
            # rest first, so that one call syncs content and names.
            here = [chunk for chunk in chunks if os.path.exists(self._chunk(chunk))]
            _sync([f"{incoming}/{chunk}" for chunk in here])
            for chunk in chunks:
                os.replace(f"{incoming}/{chunk}", self._chunk(chunk))

    @contextlib.contextmanager
    def _arrival(self, chunks: Collection[str]) -> Iterator[None]:
        """Keep chunks that have their names and no references yet."""
        with self._change:
            self._arriving.update(chunks)
        try:
            yield
        finally:
            with self._change:
                self._arriving.subtract(chunks)
                self._arriving = +self._arriving

    def put_manifest(self, user: str, sha256: str, data: bytes, now: float) -> list[str]:
        """Store a manifest if the user has uploaded all its content; else return what is missing.
        Raises BadManifestError, QuotaError and StoreFullError."""
        if digest(data) != sha256:
            raise BadManifestError("the manifest is not what its name says")
        manifest = decode(data)
        self.check_size(manifest.size)
        chunks = manifest.chunks()
        with self._change:
            sizes = self._references.sizes(user, list(chunks), now)
            missing = [chunk for chunk in chunks if chunk not in sizes]
            known = self._references.bundle(user, sha256, now)
            if not missing:
                if sizes != chunks:
                    raise BadManifestError("a chunk has another size than the manifest says")
                if known is None:
                    self._check_room(len(data))
                    self._check_quota(user, len(data))
                try:
                    write_atomic(self._folder / _MANIFESTS / sha256, data, 0o600)
                except FileError as error:
                    raise _full_or(error.__cause__, self._folder) from error
                files = len(manifest.files) + len(manifest.links)
                bundle = Bundle(files, manifest.size)
                self._references.add_bundle(user, sha256, bundle, len(data), now)
        return missing

    def check_size(self, size: int) -> None:
        """Raise QuotaError for a bundle that is too large."""
        if size > self.limits.bundle_bytes:
            raise QuotaError(
                f"the code is {size} bytes, and at most {self.limits.bundle_bytes} may travel with "
                "a job"
            )

    def manifest(self, sha256: str) -> tuple[bytes, CodeManifest] | None:
        """Return a manifest as stored and decoded. Returns None if it is lost or damaged; then its
        users send it again."""
        found = self._manifest(sha256)
        if found is None:
            with self._change:
                found = self._manifest(sha256)
                if found is None:
                    self._references.forget_bundles([sha256])
        return found

    def _manifest(self, sha256: str) -> tuple[bytes, CodeManifest] | None:
        try:
            data = (self._folder / _MANIFESTS / sha256).read_bytes()
            if digest(data) != sha256:
                raise BadManifestError("its content is not what its name says")
            return data, decode(data)
        except FileNotFoundError:
            return None
        except (OSError, BadManifestError) as error:
            _log.error("manifest_damaged", bundle=sha256, why=str(error))
            return None

    def chunk(self, sha256: str) -> bytes | None:
        """Return a chunk. Returns None if it is lost or damaged; then its users send it again."""
        found = self._read(sha256)
        if found is None:
            with self._change:
                found = self._read(sha256)
                # Otherwise it is replaced now.
                if found is None and sha256 not in self._arriving:
                    _log.error("chunk_lost", chunk=sha256, done="its users upload it again")
                    self._references.forget_content(sha256, self._holding(sha256))
                    Path(self._chunk(sha256)).unlink(missing_ok=True)
        return found

    def _read(self, sha256: str) -> bytes | None:
        try:
            data = Path(self._chunk(sha256)).read_bytes()
        except FileNotFoundError:
            return None
        return data if digest(data) == sha256 else None

    def _holding(self, chunk: str) -> list[str]:
        """Return the names of the bundles that have a chunk."""
        found = []
        for path in (self._folder / _MANIFESTS).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if chunk.encode() in path.read_bytes():
                    found.append(path.name)
        return found

    def ticket(self, task: str, bundle: str) -> str:
        """Return the ticket with which the node of a task may fetch its bundle."""
        return hmac.new(self._key, f"{task} {bundle}".encode(), hashlib.sha256).hexdigest()

    def is_ticket(self, ticket: str, task: str, bundle: str) -> bool:
        """True if `ticket` was issued for this task and bundle."""
        return hmac.compare_digest(ticket.encode(), self.ticket(task, bundle).encode())

    def peers_key(self, attempt: str, bundle: str) -> bytes:
        """Return the key with which the nodes of an attempt seal what they exchange of a bundle."""
        return hmac.digest(self._key, f"peers {attempt} {bundle}".encode(), "sha256")

    def drop_unused(self, user: str, live: Iterable[str], now: float) -> int:
        """Drop the user's references to code that was not used for an hour, and that no job of
        `live` names. Returns the number of bundles. The next `collect` removes the content."""
        before = now - _SHORT_KEEP_S
        named = set(live)
        with self._change:
            bundles = self._references.bundles(user)
            old = [sha for sha, seen in bundles.items() if seen < before and sha not in named]
            kept: set[str] = set()
            for sha256 in bundles.keys() - set(old):
                found = self._manifest(sha256)
                if found is not None:
                    kept.update(found[1].chunks())
            self._references.drop(user, old, before, kept)
        return len(old)

    def collect(self, live: Iterable[str], now: float) -> int:
        """Remove content that has not been used for long, or for an hour if the disk is short, and
        that no job of `live` names. Returns the number of chunks removed."""
        keep_s = self.limits.keep_s
        if not self._has_room(self.limits.free_bytes):
            keep_s = min(keep_s, _SHORT_KEEP_S)
        before = now - keep_s
        with self._change:
            bundles = self._references.drop_old(before, live)
            kept: set[str] = set()
            for sha256 in bundles:
                found = self._manifest(sha256)
                if found is not None:
                    kept.update(found[1].chunks())
            for path in (self._folder / _MANIFESTS).iterdir():
                if path.name not in bundles:
                    path.unlink(missing_ok=True)
            kept |= self._references.drop_chunks(before, kept) | self._arriving.keys()
            removed = 0
            for path in (self._folder / _CHUNKS).glob("??/*"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _chunk(self, sha256: str) -> str:
        # A text, because an upload has thousands of them.
        return f"{self._chunks}/{sha256[:2]}/{sha256}"

    def _check_room(self, more: int) -> None:
        if not self._has_room(more):
            raise StoreFullError(f"the disk of {self._folder} has too little room for more code")

    def _has_room(self, more: int) -> bool:
        """True if the disk has `more` bytes and the inodes for them above what stays free."""
        try:
            disk = os.statvfs(self._folder)
        except OSError as error:
            raise FileError(f"{self._folder} cannot be examined: {error.strerror}") from error
        # Some file systems have no fixed number of inodes, and say 0.
        inodes = not disk.f_files or disk.f_favail > disk.f_files // INODES_LEFT
        return inodes and disk.f_bavail * disk.f_frsize >= self.limits.free_bytes + more

    def _check_quota(self, user: str, more: int) -> None:
        held = self._references.held(user)
        if held.bytes + more > self.limits.user_bytes:
            reached = f"{self.limits.user_bytes} bytes"
        elif held.files >= self.limits.user_files:
            reached = f"{self.limits.user_files} pieces"
        else:
            return
        raise FullQuotaError(
            f"the code that {user} has uploaded has reached {reached}, the limit; code that no job "
            "uses makes room an hour after its last use"
        )

    def _sync_stored(self, chunks: Collection[str]) -> None:
        """Sync chunks and their names to disk."""
        _sync([self._chunk(chunk) for chunk in chunks])
        if len(chunks) <= _FEW:
            for name in {chunk[:2] for chunk in chunks}:
                sync_directory(self._folder / _CHUNKS / name)
            sync_directory(self._folder / _CHUNKS)

    def _ticket_key(self) -> bytes:
        path = self._folder / _KEY
        with contextlib.suppress(FileNotFoundError):
            key = path.read_bytes()
            if len(key) == _KEY_BYTES:
                return key
        write_atomic(path, secrets.token_bytes(_KEY_BYTES), 0o600)
        return path.read_bytes()


def _write(path: str, content: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def _sync(paths: Sequence[str]) -> None:
    """Sync files to disk: few of them one by one, many by one call for their file system."""
    if len(paths) > _FEW:
        _sync_all(paths[0])
        return
    for path in paths:
        sync_file(Path(path))


def _sync_all(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)


def _full_or(error: BaseException | None, folder: Path) -> DaemonError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"the disk of {folder} is full")
    return FileError(f"code cannot be stored in {folder}: {error}")

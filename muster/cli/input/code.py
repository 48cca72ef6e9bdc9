"""Code that travels with a job: what of it is sent, and its transfer with progress."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Final

from muster.bundle.index import cache_folder
from muster.bundle.manifest import File, digest
from muster.bundle.pack import PackBuffer, batches, pack
from muster.bundle.scan import (
    Listing,
    ScanError,
    Scanned,
    Take,
    listing,
    read,
    read_chunk,
    size_text,
    too_large,
)
from muster.bundle.sources import folder_of, remember
from muster.bundle.suspects import data_folders, data_sets, secrets
from muster.cli.errors import RefusedError
from muster.cli.input.job_input import JobInput
from muster.cli.output.format import note, safe
from muster.cli.output.progress import Progress
from muster.client import ApiError, Client
from muster.protocol.roles import Role
from muster.protocol.text import count
from muster.spec.checks.scripts import needed_scripts, scripts
from muster.spec.model import JobSpec
from muster.spec.suggestions import nearest_path

_NAMED: Final = 10
_ABSENT: Final = "is not in the code that travels with the job"
_LARGE_BYTES: Final = 50 << 20
_LARGE_FILES: Final = 5000
_UNKNOWN: Final = "unknown_bundle"
_TOO_MUCH: Final = "too_much_code"
_DAMAGED: Final = "bad_content"
_CONTENT_MISSING: Final = "content_missing"
_SENDERS: Final = 2
"""The number that the coordinator reads of one user at a time."""


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the garbage collector, which would look again and again at all files of a folder."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@_no_collections()
def ship(client: Client, job: JobInput, folder: Path) -> JobInput:
    """Send the code of a job, and return the job with its hash. A folder that the job does not name
    stays here if the job's pool has one. Raises ClientError and RefusedError."""
    coordinator = client.version()
    if job.by_default and (there := coordinator.workdirs.get(job.spec.pool)) is not None:
        note(f"workdir: {safe(there)}, by the defaults of pool {safe(job.spec.pool)}")
        return job
    with _refusals():
        found = _listing(job, folder, coordinator.code_bytes_max, strict=True)
        upload = Upload(client, found)
        code = _read(found, upload.take)
        shipped = with_code(job, code)
        if shipped is not job:
            upload.finish(code)
    return shipped


def with_code(job: JobInput, code: Scanned) -> JobInput:
    """Return the job with the hash of its code. An empty folder that it does not name is left
    out."""
    empty = not (code.manifest.files or code.manifest.links)
    return job if job.by_default and empty else job.with_bundle(code.sha256)


@_no_collections()
def read_code(job: JobInput, folder: Path, *, strict: bool = False) -> Scanned:
    """Read the folder of a job's code, and report what its author should know before it is sent.
    Raises RefusedError, if `strict` also for a job that cannot run with it."""
    with _refusals():
        return _read(_listing(job, folder, 0, strict=strict), None)


def is_sent(client: Client, job: JobInput) -> bool:
    """True if the folder of the job's code is sent: a pool may have another for jobs that name
    none. Raises ClientError."""
    return not job.by_default or job.spec.pool not in client.version().workdirs


def _listing(job: JobInput, folder: Path, bytes_max: int, *, strict: bool) -> Listing:
    """Find what travels, and report what its author should know. Raises ScanError, if `strict`
    also if the job's program does not travel."""
    if not folder.is_dir():
        raise ScanError(
            f"workdir: there is no folder {folder} on this machine",
            "a relative `workdir` is a folder beside the job file, which is sent to the "
            "nodes; write an absolute path for one that the nodes have",
        )
    found = listing(folder, bytes_max=bytes_max)
    if strict:
        _check_program(found, job.spec)
    for said in remarks(found, job.spec, by_default=job.by_default):
        note(safe(said))
    return found


def _read(found: Listing, take: Take | None) -> Scanned:
    progress = Progress("reading code" if take is None else "sending code", sys.stderr)
    code = read(found, cache_folder(os.environ), show=progress.show, take=take)
    progress.end()
    return code


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn a ScanError into a RefusedError, safe for a terminal."""
    try:
        yield
    except ScanError as error:
        lines = str(error).split("\n")
        hint = [f"  {error.hint}"] if error.hint else []
        raise RefusedError("\n".join(map(safe, lines + hint))) from None


def remarks(code: Listing, spec: JobSpec | None, *, by_default: bool) -> Iterator[str]:
    """Yield what users should know before the code is sent."""
    files = code.sizes()
    size, number = code.size, len(files) + len(code.links)
    yield f"code: {code.folder} ({count(number, 'file')}, {size_text(size)}) travels with the job"
    if by_default and (size > _LARGE_BYTES or number > _LARGE_FILES):
        yield (
            "this is all of the folder, since the job names no `workdir`; if it needs none of it: "
            "--set workdir=none; what it does not need can be named in .musterignore"
        )
    if found := secrets(path for path, _ in files):
        yield (
            f"the code has files that look like secrets: {_some(found)}; name them in "
            ".musterignore if the job does not need them"
        )
    if large := data_sets(files):
        named = [f"{path} ({size_text(size)})" for path, size in large]
        yield f"the code has files that look like data: {_some(named)}"
    if folders := data_folders(files):
        named = [
            f"{path} ({count(number, 'file')}, {size_text(size)})" for path, number, size in folders
        ]
        yield (
            f"the code has folders that look like data: {_some(named)}; name them in "
            ".musterignore, and keep data on storage that the nodes mount"
        )
    for script in () if spec is None else _absent(code, scripts(spec)):
        yield f"{script} {_ABSENT}{_why_not(code, script)}"


def listed(code: Scanned) -> str:
    """Return the files and links that travel, with their sizes."""
    lines = [f"{size_text(file.size):>9}  {safe(file.path)}" for file in code.manifest.files]
    lines += [f"{'link':>9}  {safe(f'{a.path} -> {a.target}')}" for a in code.manifest.links]
    return "\n".join(sorted(lines, key=lambda line: line[11:]))


@_no_collections()
def send_again(client: Client, number: int) -> Scanned:
    """Send the code of a job as it is now, in the folder from which this machine sent it. Raises
    ClientError and RefusedError."""
    coordinator, job = client.version(), client.job(number)
    if coordinator.user not in ("", job.user) and coordinator.role != Role.ADMIN.value:
        # The coordinator would refuse the job only after the code was sent.
        raise RefusedError(
            f"job {number} is {safe(job.user)}'s: only {safe(job.user)} and the role admin may "
            "submit it again\n  submit a job file of your own: muster submit -f FILE"
        )
    workdir = job.spec.get("workdir")
    bundle = workdir.get("bundle") if isinstance(workdir, dict) else None
    if not isinstance(bundle, str):
        raise RefusedError(f"the code of job {number} did not travel with it: leave --ship out")
    folder = folder_of(cache_folder(os.environ), bundle)
    if folder is None:
        raise RefusedError(
            f"the code of job {number} was not sent from this machine and account\n"
            "  submit its job file: muster submit -f FILE"
        )
    if not folder.is_dir():
        raise RefusedError(
            f"the folder {safe(str(folder))}, from which job {number} was sent, is gone\n"
            f"  rerun it with the same code, muster rerun {number}, or submit a job file"
        )
    with _refusals():
        found = listing(folder, bytes_max=coordinator.code_bytes_max)
        for said in remarks(found, None, by_default=False):
            note(safe(said))
        upload = Upload(client, found)
        code = _read(found, upload.take)
        upload.finish(code)
    return code


class Upload:
    """The upload of a folder to one coordinator."""

    def __init__(self, client: Client, found: Listing) -> None:
        self._client = client
        self._found = found
        self._lock = threading.Lock()
        self._there: set[str] = set()
        self._sent: dict[str, int] = {}

    def take(self, read: PackBuffer) -> None:
        """Send those chunks that the coordinator lacks. Called by several threads. Raises
        ClientError and ScanError."""
        with self._lock:
            new = {name: size for name, size in read.chunks.items() if name not in self._there}
        missing = self._missing(new)
        if missing:
            with self._quota():
                self._client.send_chunks(read.pack(missing))
        with self._lock:
            self._there.update(new)
            self._sent.update(missing)

    def finish(self, code: Scanned) -> None:
        """Send the manifest, and first what the coordinator still lacks. Raises ClientError and
        ScanError."""
        if not (self._is_complete(code) or self._is_known(code.sha256) or self._is_renewed(code)):
            self._send(code, self._missing(code.manifest.chunks()))
            self._send_manifest(code)
        if self._sent:
            total = size_text(sum(self._sent.values()))
            note(f"sent {total} of code in {count(len(self._sent), 'new piece')}")
        remember(cache_folder(os.environ), code.sha256, code.folder)

    def _is_complete(self, code: Scanned) -> bool:
        """True if all content was sent while it was read, and the manifest is sent."""
        sent = bool(self._there) and self._there >= code.manifest.chunks().keys()
        return sent and self._is_stored(code)

    def _is_renewed(self, code: Scanned) -> bool:
        """Send what is not in the bundle of the scan before, and the manifest. Returns False if the
        coordinator lacks content, as without that bundle. Otherwise it is not asked about thousands
        of chunks for one new line."""
        if not code.before or not self._is_known(code.before):
            return False
        names = code.manifest.chunks() if code.fresh else {}
        fresh = {chunk: names[chunk] for chunk in code.fresh}
        self._send(code, self._missing(fresh) if fresh else {})
        return self._is_stored(code)

    def _is_stored(self, code: Scanned) -> bool:
        """Send the manifest. Returns False if the coordinator lacks content."""
        try:
            self._send_manifest(code)
        except ApiError as error:
            if error.problem.code != _CONTENT_MISSING:
                raise
            return False
        return True

    def _is_known(self, sha256: str) -> bool:
        """True if the coordinator has all of the code, from before."""
        try:
            self._client.bundle(sha256)
        except ApiError as error:
            if error.problem.code != _UNKNOWN:
                raise
            return False
        return True

    def _missing(self, chunks: Mapping[str, int]) -> dict[str, int]:
        """Return those of the chunks that the coordinator lacks."""
        with self._quota():
            return self._client.missing_chunks(chunks, self._found.size)

    def _send_manifest(self, code: Scanned) -> None:
        with self._quota():
            self._client.send_manifest(code.sha256, code.data)

    @contextmanager
    def _quota(self) -> Iterator[None]:
        """Add the largest files to a refusal of code that is too much, whichever limit it is."""
        try:
            yield
        except ApiError as error:
            if error.problem.code != _TOO_MUCH:
                raise
            raise too_large(error.problem.detail, self._found.sizes()) from error

    def _send(self, code: Scanned, missing: Mapping[str, int]) -> None:
        total, sent = sum(missing.values()), 0
        where = _places(code.manifest.files, missing)
        progress = Progress("sending code", sys.stderr)
        progress.show(0, total)

        def send(batch: list[str]) -> list[str]:
            contents = (
                (chunk, _content(code.folder, where[chunk], missing[chunk])) for chunk in batch
            )
            try:
                with self._quota():
                    self._client.send_chunks(pack(contents))
            except ApiError as error:
                if error.problem.code == _DAMAGED:
                    for chunk in batch:
                        _check_unchanged(code.folder, where[chunk], chunk, missing[chunk])
                raise
            return batch

        for batch in _in_threads(send, list(batches(missing))):
            sent += sum(missing[chunk] for chunk in batch)
            progress.show(sent, total)
        progress.end()
        self._sent.update(missing)


def _in_threads(
    send: Callable[[list[str]], list[str]], parts: list[list[str]]
) -> Iterator[list[str]]:
    """Send parts, while one is on its way the next. Yields those that have arrived."""
    if len(parts) < 2:
        yield from map(send, parts)
        return
    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(_SENDERS)
    try:
        yield from threads.map(send, parts)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _content(folder: Path, place: tuple[str, int], size: int) -> bytes:
    path, number = place
    try:
        return read_chunk(folder, path, number, size)
    except OSError as error:
        raise ScanError(f"{path} cannot be read: {error.strerror}") from error


def _check_unchanged(folder: Path, place: tuple[str, int], chunk: str, size: int) -> None:
    """Raise ScanError if a file is no longer as it was read; the coordinator compares first."""
    if digest(_content(folder, place, size)) != chunk:
        raise ScanError(
            f"{place[0]} has changed since it was read", "submit again once it is complete"
        )


def _places(files: tuple[File, ...], wanted: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    return {
        chunk: (file.path, number)
        for file in files
        for number, chunk in enumerate(file.chunks)
        if chunk in wanted
    }


def _check_program(code: Listing, spec: JobSpec) -> None:
    """Raise ScanError if the program of the job does not travel with it."""
    script = next(_absent(code, needed_scripts(spec)), None)
    if script is None:
        return
    near = nearest_path(script, code.paths())
    meant = f"did you mean {near}? " if near else ""
    hint = f"{meant}For a file that only the nodes have, write its absolute path"
    raise ScanError(f"run: {script} {_ABSENT}{_why_not(code, script)}", hint)


def _absent(code: Listing, started: Sequence[str]) -> Iterator[str]:
    """Yield those scripts that do not travel."""
    if not started:
        return
    paths, links = code.paths(), {link.path for link in code.links}
    for script in started:
        above = set(accumulate(script.split("/"), "{}/{}".format))
        if script not in paths and not above & links:
            yield script


def _why_not(code: Listing, script: str) -> str:
    above = script
    while above:
        for name in (above, f"{above}/"):
            if (origin := code.ignored.get(name)) is not None:
                return f": line {origin.line} of {origin.file} ignores it"
        above = above.rpartition("/")[0]
    return f"; there is no such file in {code.folder}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown

"""Fetch of a task's code from the coordinator, while the task is prepared."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from agent.code.store import CodeStore
from agent.link.dialer import ConnectionLostError, Dialer
from muster.bundle.manifest import MANIFEST_BYTES_MAX, BadManifestError, CodeManifest
from muster.bundle.pack import PACK_BYTES_MAX, BadPackError, batches, unpack
from muster.daemon.clock import Clock
from muster.daemon.errors import DaemonError
from muster.http.bundles import ChunksRequest
from muster.protocol.link.control_channel import PrepareTask

_TRIES: Final = 5
_PAUSE_S: Final = 0.5
_CLEAN_EVERY_S: Final = 3600.0
_TICKET: Final = "X-Muster-Ticket"

_log = structlog.get_logger("agent.code")


class CodeError(DaemonError):
    """The code of a task cannot be had; the text is a sentence."""


class CodeFetcher:
    """Brings the content of bundles to this node."""

    def __init__(self, store: CodeStore, dialer: Dialer, clock: Clock) -> None:
        self.store = store
        self._dialer = dialer
        self._clock = clock
        self._pinned: Counter[str] = Counter()
        self._cleaned_at = float("-inf")

    async def fetch(self, prepare: PrepareTask) -> CodeManifest | None:
        """Return the manifest of the task's code once all its content is here, pinned until
        `release`; None for a task without. Raises CodeError and FileError."""
        if prepare.bundle is None:
            return None
        manifest = await asyncio.to_thread(self.store.manifest, prepare.bundle)
        if manifest is None:
            manifest = await self._manifest(prepare, prepare.bundle)
        self._pinned.update(manifest.chunks().keys())
        try:
            await self.complete(prepare, manifest)
        except BaseException:
            self.release(manifest)
            raise
        return manifest

    async def complete(self, prepare: PrepareTask, manifest: CodeManifest) -> None:
        """Fetch what is missing. Raises CodeError and FileError."""
        missing = await asyncio.to_thread(self.store.missing, manifest)
        for batch in batches(missing):
            await self._chunks(prepare, batch)

    def release(self, manifest: CodeManifest) -> None:
        """Let the content of a bundle be removed again, once its copy is made."""
        self._pinned.subtract(manifest.chunks().keys())
        self._pinned += Counter()

    async def clean(self) -> None:
        """Remove old content, once in a while."""
        now = self._clock.now()
        if now.mono - self._cleaned_at >= _CLEAN_EVERY_S:
            self._cleaned_at = now.mono
            await asyncio.to_thread(self.store.clean, frozenset(self._pinned), now.wall)

    async def _manifest(self, prepare: PrepareTask, bundle: str) -> CodeManifest:
        path = f"/v1/agent/tasks/{prepare.task}/bundle"
        why = ""
        for _ in range(2):
            data = await self._request(prepare, "GET", path, None, MANIFEST_BYTES_MAX)
            try:
                return await asyncio.to_thread(self.store.keep_manifest, bundle, data)
            except BadManifestError as error:
                why = str(error)
        raise CodeError(f"the coordinator sent a list of files that cannot be used: {why}")

    async def _chunks(self, prepare: PrepareTask, wanted: list[str]) -> None:
        """Fetch chunks, those that arrive damaged once again."""
        path = f"/v1/agent/tasks/{prepare.task}/blobs"
        left, why = wanted, ""
        for _ in range(2):
            body = msgspec.json.encode(ChunksRequest(tuple(left)))
            data = await self._request(prepare, "POST", path, body, PACK_BYTES_MAX)
            try:
                kept = await asyncio.to_thread(self.store.keep, unpack(data))
            except BadPackError as error:
                why = str(error)
                _log.warning("code_damaged", task=prepare.task, why=why)
                continue
            left = [chunk for chunk in left if chunk not in kept]
            if not left:
                return
            why = f"{len(left)} chunks are missing"
        raise CodeError(f"the code arrived damaged twice: {why}")

    async def _request(
        self, prepare: PrepareTask, method: str, path: str, body: bytes | None, bytes_max: int
    ) -> bytes:
        headers: Mapping[str, str] = {_TICKET: prepare.ticket}
        for left in reversed(range(_TRIES)):
            try:
                return await self._dialer.request(method, path, body, headers, bytes_max)
            except ConnectionLostError as error:
                # A coordinator that restarts is back soon; a refusal stays one.
                if error.refused or not left:
                    raise CodeError(f"the code cannot be fetched: {error}") from error
                await asyncio.sleep(_PAUSE_S * (_TRIES - left))
        raise AssertionError("the last try returns or raises")

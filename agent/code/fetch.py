"""Fetch of a task's code from the coordinator, while the task is prepared."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import structlog

from agent.code.peers import CodePeers, NoPeerError, Swarm
from agent.code.store import CodeStore
from agent.link.dialer import ConnectionLostError, Dialer
from muster.bundle.manifest import MANIFEST_BYTES_MAX, BadManifestError, CodeManifest
from muster.bundle.pack import PACK_BYTES_MAX, PACK_CHUNKS, BadPackError, batches, unpack
from muster.daemon.clock import Clock
from muster.daemon.errors import DaemonError
from muster.http.bundles import ChunksRequest, PeersAnswer, PeersRequest
from muster.protocol.link.control_channel import PrepareTask

_PAUSE_S: Final = 0.5
_CLEAN_EVERY_S: Final = 3600.0
_TICKET: Final = "X-Muster-Ticket"
_PEERS_BYTES_MAX: Final = 4 << 20
_PEERS_AT_ONCE: Final = 16
_AGAIN_S: Final = 0.05

_log = structlog.get_logger("agent.code")


class CodeError(DaemonError):
    """The code of a task cannot be had; the text is a sentence."""


class FetchLimits(NamedTuple):
    """Bounds of a fetch. `pause_max_s`: the longest pause after a failed request. `shared_bytes`:
    less is fetched from the coordinator, in less time than it takes to find peers. `news_s`: the
    least time between two questions for peers. `absent_s`: how long a peer that does not answer is
    asked again, once this node has its own share; `nothing_new_s`: the same for one that answers
    and has nothing new. `wait_s`: how long this node waits, when asked, for content that it does
    not have yet."""

    pause_max_s: float = 10.0
    shared_bytes: int = 8 << 20
    news_s: float = 0.5
    absent_s: float = 3.0
    nothing_new_s: float = 15.0
    wait_s: float = 10.0


class CodeFetcher:
    """Brings the content of bundles to this node."""

    def __init__(
        self,
        store: CodeStore,
        dialer: Dialer,
        clock: Clock,
        peer_port: int = 0,
        limits: FetchLimits = FetchLimits(),  # noqa: B008  immutable
    ) -> None:
        self.store = store
        self.peers = CodePeers(store, peer_port, limits.wait_s)
        self._limits = limits
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
        if manifest.size >= self._limits.shared_bytes:
            swarm = await self._join(prepare, manifest)
            if swarm is not None and sum(missing.values()) >= self._limits.shared_bytes:
                await self._share(prepare, swarm, manifest, missing)
                missing = await asyncio.to_thread(self.store.missing, manifest)
        await self._from_coordinator(prepare, missing)

    async def repair(self, prepare: PrepareTask, manifest: CodeManifest) -> None:
        """Fetch again all that is damaged on this node's disk. Raises CodeError and FileError."""
        damaged = await asyncio.to_thread(self.store.drop_damaged, manifest)
        _log.warning("code_repaired", task=prepare.task, chunks=damaged)
        await self.complete(prepare, manifest)

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

    async def _from_coordinator(self, prepare: PrepareTask, wanted: Mapping[str, int]) -> None:
        for batch in batches(wanted):
            await self._chunks(prepare, batch)

    async def _join(self, prepare: PrepareTask, manifest: CodeManifest) -> Swarm | None:
        """Enter the swarm of the task's gang; None if this node has to do without."""
        port = await self.peers.port()
        answer = await self._ask_for_peers(prepare, port) if port else None
        if answer is None or answer.nodes == 1:
            return None
        task = prepare.task.rpartition(".")[0]
        allowed = frozenset(manifest.chunks())
        swarm = Swarm(task, bytes.fromhex(answer.key), answer.rank, answer.nodes, allowed)
        swarm.peers.update((peer.rank, peer) for peer in answer.peers)
        self.peers.enter(swarm)
        return swarm

    async def _ask_for_peers(self, prepare: PrepareTask, port: int) -> PeersAnswer | None:
        path = f"/v1/agent/tasks/{prepare.task}/peers"
        body = msgspec.json.encode(PeersRequest(port))
        try:
            data = await self._request(prepare, "POST", path, body, _PEERS_BYTES_MAX)
            return msgspec.json.decode(data, type=PeersAnswer)
        except (CodeError, msgspec.DecodeError) as error:
            _log.warning("no_code_peers", task=prepare.task, why=str(error))
            return None

    async def _share(
        self,
        prepare: PrepareTask,
        swarm: Swarm,
        manifest: CodeManifest,
        missing: Mapping[str, int],
    ) -> None:
        """Fetch this node's share from the coordinator, and what other nodes have of theirs from
        them. Raises CodeError and FileError."""
        shares: list[dict[str, int]] = [{} for _ in range(swarm.nodes)]
        for number, chunk in enumerate(manifest.chunks()):
            if chunk in missing:
                shares[number % swarm.nodes][chunk] = missing[chunk]
        own = asyncio.Event()
        turns = asyncio.Semaphore(_PEERS_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                news = group.create_task(self._hear_of_peers(prepare, swarm))
                others = [
                    group.create_task(
                        self._from_peer(swarm, rank % swarm.nodes, shares, own, turns)
                    )
                    for rank in range(swarm.rank + 1, swarm.rank + swarm.nodes)
                ]
                await self._from_coordinator(prepare, shares[swarm.rank])
                own.set()
                await asyncio.wait(others)
                news.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _hear_of_peers(self, prepare: PrepareTask, swarm: Swarm) -> None:
        """Ask again which nodes of the gang give content, until all do."""
        port = await self.peers.port()
        while len(swarm.peers) < swarm.nodes:
            await asyncio.sleep(max(self._limits.news_s, swarm.nodes / 50))
            answer = await self._ask_for_peers(prepare, port)
            if answer is None:
                return
            swarm.peers.update((peer.rank, peer) for peer in answer.peers)

    async def _from_peer(
        self,
        swarm: Swarm,
        rank: int,
        shares: list[dict[str, int]],
        own: asyncio.Event,
        turns: asyncio.Semaphore,
    ) -> None:
        """Fetch the share of another node from it, as long as that goes on. It has the time in
        which this node gets its own."""
        wanted, loop = shares[rank], asyncio.get_running_loop()
        limit = None
        while wanted:
            patience_s = self._limits.absent_s
            if (peer := swarm.peers.get(rank)) is not None:
                try:
                    async with turns:
                        asked = list(wanted)[:PACK_CHUNKS]
                        data = await self.peers.ask(swarm, peer, asked)
                    kept = await asyncio.to_thread(self.store.keep, unpack(data))
                    self.peers.arrived()
                    patience_s = self._limits.nothing_new_s
                    if kept:
                        limit = None
                    for chunk in kept:
                        wanted.pop(chunk, None)
                except (NoPeerError, BadPackError) as error:
                    _log.info("code_peer_failed", peer=peer.address, why=str(error))
            if not wanted:
                return
            if own.is_set():
                limit = limit or loop.time() + patience_s
                if loop.time() >= limit:
                    return
            await asyncio.sleep(_AGAIN_S)

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
            self.peers.arrived()
            left = [chunk for chunk in left if chunk not in kept]
            if not left:
                return
            why = f"{len(left)} chunks are missing"
        raise CodeError(f"the code arrived damaged twice: {why}")

    async def _request(
        self, prepare: PrepareTask, method: str, path: str, body: bytes | None, bytes_max: int
    ) -> bytes:
        headers: Mapping[str, str] = {_TICKET: prepare.ticket}
        limit = self._clock.now().mono + prepare.timeout_s
        for number in itertools.count():
            try:
                return await self._dialer.request(method, path, body, headers, bytes_max)
            except ConnectionLostError as error:
                # A coordinator that restarts is back within the time that it gives the task; a
                # refusal stays one.
                pause_s = pause_after(number, self._limits.pause_max_s)
                if error.refused or self._clock.now().mono + pause_s >= limit:
                    raise CodeError(f"the code cannot be fetched: {error}") from error
                if not number:
                    _log.info("code_not_fetched_yet", task=prepare.task, why=str(error))
                await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")


def pause_after(number: int, most_s: float) -> float:
    """Return the pause after a failed request: random, because all nodes of a gang ask at once."""
    spread = random.uniform(1.0, 1.5)  # noqa: S311  no secret
    return min(spread * _PAUSE_S * 2.0 ** min(number, 9), most_s)

"""Routes for the code that travels with jobs: uploads of users, and downloads of nodes.

A user refers only to content that this user has uploaded. A node gets only the content of a task
that was placed on it: it shows the ticket that came with the command to prepare that task.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from aiohttp import web

from muster.bundle.manifest import MANIFEST_BYTES_MAX, BadManifestError, is_digest
from muster.bundle.pack import PACK_BYTES, PACK_BYTES_MAX, PACK_CHUNKS, BadPackError, head
from muster.daemon.errors import FileError
from muster.http.bundles import (
    BundleView,
    ChunksRequest,
    CodePeer,
    MissingAnswer,
    MissingRequest,
    PackAnswer,
    PeersAnswer,
    PeersRequest,
)
from muster.protocol.ids import BadId, JobId, NodeName, TaskId, parse_task_id
from muster.protocol.states import TaskState
from muster.protocol.tokens import TokenClass
from muster.spec.model import JobSpec
from orchestrator.api.bundles.upload_buffers import UploadBuffers
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.connection_limits import BoundedAnswer
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.request_parsing import shown, struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.http.route import BYTES
from orchestrator.api.http.tokens import NodeCredential
from orchestrator.core.model.people import KnownToken
from orchestrator.core.model.task import reached
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.bundles.references import StoreFullError
from orchestrator.shell.bundles.store import BundleStore, FullQuotaError, QuotaError
from orchestrator.shell.coordinator import Coordinator

TICKET: Final = "X-Muster-Ticket"
_UPLOADS: Final = 8
_UPLOADS_PER_USER: Final = 2
_FETCHES_PER_TASK: Final = 2
_PIECE_BYTES: Final = 256 << 10
_THREADS: Final = 4
_MANIFESTS_BYTES: Final = 64 << 20
_CHUNK_NAME_BYTES: Final = 200
"""Memory of a chunk's name and size in a dictionary, about."""
_GANGS: Final = 256
_T = TypeVar("_T")


class TransferLimits(NamedTuple):
    """Bounds of uploads and downloads: seconds before the rate of an upload counts, answers to
    nodes that are sent at a time, and seconds of one answer."""

    grace_s: float = 15.0
    fetches: int = 32
    fetch_s: float = 300.0


class _Task(NamedTuple):
    job: int
    attempt: int
    rank: int
    nodes: int
    bundle: str


class _Manifest(NamedTuple):
    data: bytes
    chunks: dict[str, int]

    @property
    def memory(self) -> int:
        return len(self.data) + _CHUNK_NAME_BYTES * len(self.chunks)


class BundlesApi:
    """Routes below /v1/blobs, /v1/bundles and /v1/agent/tasks."""

    def __init__(
        self,
        coordinator: Coordinator,
        store: BundleStore,
        limits: TransferLimits = TransferLimits(),  # noqa: B008  immutable
    ) -> None:
        self.limits = limits
        self._coordinator = coordinator
        self._store = store
        # Because bodies are kept in memory until they are verified, few are read at a time.
        self._uploads = asyncio.Semaphore(_UPLOADS)
        self._buffers = UploadBuffers()
        # Users share these threads in turn. Nodes have other threads, so that no job waits for an
        # upload.
        self._calls = BulkReads(_THREADS)
        self._fetches = ThreadPoolExecutor(_THREADS, thread_name_prefix="code-fetches")
        self._gangs: OrderedDict[str, dict[int, CodePeer]] = OrderedDict()
        self._of_user: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._of_a_task: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        # Answers to nodes that are sent at a time. The other nodes wait.
        self._answers = asyncio.Semaphore(limits.fetches)
        self._manifests: OrderedDict[str, _Manifest] = OrderedDict()
        self._reads: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Drop the calls of the store that have not begun. Safe to call twice."""
        self._calls.close()
        self._fetches.shutdown(wait=False, cancel_futures=True)

    async def missing(self, request: web.Request) -> web.Response:
        user = request[TOKEN].user
        async with self._turn(user):
            asked = await struct_body(request, MissingRequest)
            if not all(map(is_digest, asked.chunks)):
                raise ApiError(422, "bad_chunk", "a chunk's name is not a SHA-256 in lower case")
            await self._stored(user, self._store.check_size, asked.bytes)
            found = await self._stored(user, self._store.missing, user, asked.chunks, self._now())
        return reply(MissingAnswer(tuple(found)))

    async def put(self, request: web.Request) -> web.Response:
        user = request[TOKEN].user
        body = self._buffers.body(request, PACK_BYTES_MAX, self.limits.grace_s)
        async with self._turn(user), self._uploads, body as data:
            stored = await self._put(user, self._store.put, user, data, self._now())
        return reply(PackAnswer(stored), 201)

    async def put_manifest(self, request: web.Request) -> web.Response:
        sha256, user = _sha256(request), request[TOKEN].user
        async with self._turn(user), self._uploads:
            async with self._buffers.body(request, MANIFEST_BYTES_MAX, self.limits.grace_s) as body:
                data = bytes(body)
            missing = await self._put(
                user, self._store.put_manifest, user, sha256, data, self._now()
            )
        if missing:
            raise ApiError(
                409,
                "content_missing",
                f"{len(missing)} chunks of the bundle have not been uploaded by {user}",
                "ask for them with POST /v1/blobs:missing, and send them first",
            )
        return await self.show(request, 201)

    async def show(self, request: web.Request, status: int = 200) -> web.Response:
        sha256, user = _sha256(request), request[TOKEN].user
        found = await self._stored(user, self._store.bundle, user, sha256, self._now())
        if found is None:
            raise ApiError(404, "unknown_bundle", f"{user} has uploaded no bundle {sha256}")
        return reply(BundleView(sha256, found.files, found.bytes), status)

    async def check_spec(
        self, spec: JobSpec, user: str, owner: str | None, again: JobId | None = None
    ) -> None:
        """Refuse a job whose code the user has not uploaded. `owner`: the owner of the job `again`
        that is submitted again with the same code. Raises ApiError (422)."""
        if spec.bundle is None:
            return
        now = self._now()
        if await self._stored(user, self._store.bundle, user, spec.bundle, now) is not None:
            return
        if owner is not None and await self._stored(
            user, self._store.share, owner, user, spec.bundle, now
        ):
            return
        if again is not None and owner is not None:
            raise ApiError(
                422,
                "unknown_bundle",
                f"the coordinator no longer has the code of job {again}",
                f"{_again(again)}, from the machine that has its folder",
            )
        raise ApiError(
            422,
            "unknown_bundle",
            f"the coordinator has no code of {user} with the hash {spec.bundle}",
            "submit the job with `muster submit`, which sends the code first",
        )

    async def manifest(self, request: web.Request) -> web.StreamResponse:
        """Send the manifest of a task's bundle."""
        task = await self._of_task(request)
        async with self._fetch_turn(task), self._answers, _fetch_deadline(self.limits.fetch_s):
            data = (await self._manifest(task)).data
            response = BoundedAnswer()
            response.content_type, response.content_length = BYTES, len(data)
            await response.prepare(request)
            await _send(response, data)
            await response.write_eof()
        return response

    async def chunks(self, request: web.Request) -> web.StreamResponse:
        """Send chunks of a task's bundle as a pack. Each is verified when it is read."""
        task = await self._of_task(request)
        async with self._fetch_turn(task):
            asked = await struct_body(request, ChunksRequest)
            async with self._answers, _fetch_deadline(self.limits.fetch_s):
                return await self._send_chunks(request, task, asked.chunks)

    def _fetch_turn(self, task: _Task) -> asyncio.Semaphore:
        # The semaphore is kept as long as a request holds it or waits for it.
        name = f"{task.job}.{task.attempt}.{task.rank}"
        return self._of_a_task.setdefault(name, asyncio.Semaphore(_FETCHES_PER_TASK))

    async def _send_chunks(
        self, request: web.Request, task: _Task, asked: Sequence[str]
    ) -> web.StreamResponse:
        sizes = (await self._manifest(task)).chunks
        if len(asked) > PACK_CHUNKS or not sizes.keys() >= set(asked):
            raise ApiError(422, "not_in_bundle", "a chunk is not in the bundle of this task")
        if len(asked) > 1 and sum(sizes[chunk] for chunk in asked) > PACK_BYTES:
            raise ApiError(422, "too_many_chunks", f"the chunks are more than {PACK_BYTES} bytes")
        response = BoundedAnswer()
        response.content_type = BYTES
        for chunk in asked:
            data = await self._fetched(self._store.chunk, chunk)
            if data is None:
                if response.prepared:
                    raise ConnectionError("a chunk is damaged, and the answer has begun")
                raise ApiError(
                    410,
                    "content_lost",
                    f"the coordinator's copy of chunk {chunk} is lost or damaged: "
                    f"{_again(task.job)}",
                )
            if not response.prepared:
                await response.prepare(request)
            await response.write(head(chunk, len(data)))
            await _send(response, data)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def peers(self, request: web.Request) -> web.Response:
        """Note that a node gives content to its gang, and return which nodes do."""
        asked = await struct_body(request, PeersRequest)
        task = await self._of_task(request)
        name = f"{task.job}.{task.attempt}"
        gang = self._gangs.setdefault(name, {})
        self._gangs.move_to_end(name)
        if len(self._gangs) > _GANGS:
            self._gangs.popitem(last=False)
        if request.remote:
            gang[task.rank] = CodePeer(task.rank, request.remote, asked.port)
        key = self._store.peers_key(name, task.bundle).hex()
        return reply(PeersAnswer(key, task.rank, task.nodes, tuple(gang.values())))

    async def _of_task(self, request: web.Request) -> _Task:
        """Return the task in the path, which has code and is not over. Raises ApiError."""
        try:
            task = TaskId(request.match_info["id"])
            job_id, number, rank = parse_task_id(task)
        except BadId:
            raise _no_task(request) from None
        job = await self._coordinator.job(job_id)
        bundle = None if job is None else job.spec.bundle
        if job is None or bundle is None:
            raise _no_task(request)
        if not self._store.is_ticket(request.headers.get(TICKET, ""), task, bundle):
            raise _no_task(request)
        attempt = next((each for each in job.attempts if each.number == number), None)
        if attempt is None or rank >= len(attempt.tasks):
            raise _no_task(request)
        if not _may_fetch(request[TOKEN], attempt.tasks[rank].node):
            raise _no_task(request)
        if reached(attempt.tasks[rank].state, TaskState.EXITED):
            raise ApiError(409, "task_over", f"task {task} is over and needs no code")
        return _Task(job_id, number, rank, len(attempt.tasks), bundle)

    async def _manifest(self, task: _Task) -> _Manifest:
        """Return the manifest of a task's code, read once for a gang. Raises ApiError."""
        bundle = task.bundle
        async with self._reads.setdefault(bundle, asyncio.Lock()):
            found = self._manifests.get(bundle)
            if found is None:
                read = await self._fetched(self._store.manifest, bundle)
                if read is None:
                    raise ApiError(
                        410,
                        "content_lost",
                        f"the coordinator has lost the code of job {task.job}: {_again(task.job)}",
                    )
                found = self._manifests[bundle] = _Manifest(read[0], read[1].chunks())
                while self._kept_bytes() > _MANIFESTS_BYTES and len(self._manifests) > 1:
                    self._manifests.popitem(last=False)
            return found

    def _kept_bytes(self) -> int:
        return sum(each.memory for each in self._manifests.values())

    async def _fetched(self, call: Callable[[str], _T], name: str) -> _T:
        """Call the store for a node in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._fetches, call, name)

    async def _stored(self, user: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Call the store in a thread when it is this user's turn. Raises ApiError."""
        with _refusals():
            return await self._calls.slice(user, partial(call, *arguments))

    async def _put(self, user: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Store content of a user. At the quota, code that no job uses makes room. Raises
        ApiError."""
        with _refusals():
            try:
                return await self._calls.slice(user, partial(call, *arguments))
            except FullQuotaError:
                state = await self._coordinator.durable_state()
                live = {job.spec.bundle for job in state.jobs.values() if job.spec.bundle}
                drop = partial(self._store.drop_unused, user, live, self._now())
                await self._calls.slice(user, drop)
            return await self._calls.slice(user, partial(call, *arguments))

    def _turn(self, user: str) -> asyncio.Semaphore:
        return self._of_user.setdefault(user, asyncio.Semaphore(_UPLOADS_PER_USER))

    def _now(self) -> float:
        return self._coordinator.now().wall


@asynccontextmanager
async def _fetch_deadline(seconds: float) -> AsyncIterator[None]:
    """End an answer that takes too long, so that others get theirs; the node asks again. Raises
    ApiError, which closes the connection if the answer has begun."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ApiError(503, "too_slow", f"the answer was not read within {seconds:g} s") from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Explain errors of the store to users. Raises ApiError."""
    try:
        yield
    except (BadPackError, BadManifestError) as error:
        raise ApiError(422, "bad_content", str(error)) from error
    except QuotaError as error:
        raise ApiError(
            413, "too_much_code", str(error), "name data in a .musterignore file"
        ) from error
    except StoreFullError as error:
        raise ApiError(507, "disk_full", str(error), "ask an operator to make room") from error
    except FileError as error:
        hint = "try again; if that does not help, ask an operator to look at the coordinator's log"
        raise ApiError(503, "code_store_failed", str(error), hint) from error


async def _send(response: web.StreamResponse, data: bytes) -> None:
    """Write in pieces, as the reader takes them."""
    view = memoryview(data)
    for at in range(0, len(view), _PIECE_BYTES):
        await response.write(view[at : at + _PIECE_BYTES])


def _may_fetch(shown: KnownToken, node: NodeName) -> bool:
    """True if the holder of a certificate or a token may be the node of a task."""
    if isinstance(shown, NodeCredential):
        return shown.node == node
    # A join token is the same for all nodes, so its holders prove by the ticket alone which they
    # are. `muster up` makes certificates.
    return shown.class_ is TokenClass.JOIN


def _sha256(request: web.Request) -> str:
    text = request.match_info["id"]
    if not is_digest(text):
        raise ApiError(404, "unknown_bundle", f"{shown(text)} is not a SHA-256 in lower case")
    return text


def _again(job: int) -> str:
    # In the answer's detail, which the node repeats as the reason of the job's end.
    return f"`muster rerun {job} --ship` or a new `muster submit` sends it again"


def _no_task(request: web.Request) -> ApiError:
    # The same for a wrong ticket, so that nodes learn nothing of other nodes' tasks.
    name = shown(request.match_info["id"])
    return ApiError(404, "unknown_task", f"there is no task {name} with code for this ticket")

"""The coordinator's API as calls for programs with an event loop. Importing it imports aiohttp.

`muster.client.client` is made from this file: `python -m tools.sync_client`.
`muster.client.endpoints` defines the requests and their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from muster.client import endpoints
from muster.client.async_transport import AsyncTransport
from muster.client.config import Settings, given_settings
from muster.client.endpoints import CHANGE_S, WATCH_S, Call, Steps
from muster.client.env_passthrough import with_variables
from muster.client.errors import ClientError
from muster.client.http_common import HttpContext
from muster.client.retry import OnTrouble, RetryPolicy
from muster.http.explanation import Explanation
from muster.http.job_actions import CancelAnswer, ChangeAnswer, SignalAnswer
from muster.http.node_actions import DrainRequest, LostAnswer, NodeAnswer
from muster.http.views import (
    EnvironmentView,
    EventList,
    EventView,
    JobList,
    JobSummary,
    JobView,
    LogRecord,
    LogTrailer,
    NodeList,
    NodeView,
    Validation,
    VersionView,
)
from muster.protocol.roles import Role
from muster.protocol.states import JobState

# Types that most commands do not need: the command line must start fast.
if TYPE_CHECKING:
    from muster.client.log_stream import LogQuery
    from muster.client.resumable_stream import ResumableStream
    from muster.http.audit import AuditList
    from muster.http.bundles import BundleView, PackAnswer
    from muster.http.fabric import FabricView
    from muster.http.job_evidence import Evidence
    from muster.http.node_probe import NodeProbe
    from muster.http.people import (
        NewToken,
        TokenList,
        TokenRequest,
        TokenView,
        UserAnswer,
        UserList,
    )
    from muster.protocol.observations.hangs import StacksView

_T = TypeVar("_T")


class AsyncClient:
    """A client of one coordinator: `async with AsyncClient() as client: await client.job(42)`.

    Concurrent calls in one event loop share kept connections; `close` closes those of the running
    loop. Cancelling a call ends it at once.

    Without arguments it finds the coordinator and the token as `muster` does: MUSTER_URL,
    MUSTER_TOKEN and MUSTER_CA, then the client's file. `ca` is a PEM file. Raises SettingsError.

    Every call raises a ClientError: ApiError if the coordinator refuses, UnreachableError if it
    does not answer within the call's retry time (3 s for reads, 30 s for changes, 15 min for `wait`
    and followed logs). `on_trouble(error, patience_s)` is called once for each outage that a call
    retries through.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        ca: Path | None = None,
        *,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._begin(given_settings(os.environ, url, token, ca), on_trouble)

    @classmethod
    def of(cls, settings: Settings, on_trouble: OnTrouble | None = None) -> Self:
        """Create a client from `settings`."""
        client = cls.__new__(cls)
        client._begin(settings, on_trouble)
        return client

    def _begin(self, settings: Settings, on_trouble: OnTrouble | None) -> None:
        self._exchange = HttpContext(settings)
        self._transport = AsyncTransport(self._exchange)
        self._patience = RetryPolicy(on_trouble)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client may be used again."""
        await self._transport.close()

    @property
    def url(self) -> str:
        """The coordinator's URL."""
        return self._exchange.url

    @property
    def server_time(self) -> datetime | None:
        """The coordinator's clock at its last answer, the reference for ages."""
        return self._exchange.server_time

    async def submit(self, job: Mapping[str, Any], key: str | None = None) -> JobSummary:
        """Submit a job file's mapping. Calls with the same `key` submit one job; without a key,
        each call submits a job. Raises ApiError (422 names the fields)."""
        return await self._call(
            endpoints.submit(with_variables(job, os.environ), key or os.urandom(16).hex())
        )

    async def bundle(self, sha256: str) -> BundleView:
        """Return code that you have uploaded. Raises ApiError (404)."""
        return await self._call(endpoints.bundle(sha256))

    async def missing_chunks(self, chunks: Mapping[str, int], size: int) -> dict[str, int]:
        """Return those of the chunks of a bundle, given with their sizes, that you have not
        uploaded. `size` is that of the bundle. Raises ApiError (413)."""
        return await self._run(endpoints.missing_chunks(chunks, size))

    async def send_chunks(self, pack: bytes | bytearray | memoryview) -> PackAnswer:
        """Upload a pack of chunks."""
        return await self._call(endpoints.send_chunks(pack))

    async def send_manifest(self, sha256: str, data: bytes) -> BundleView:
        """Upload a manifest, once all its content is there. Raises ApiError (409)."""
        return await self._call(endpoints.send_manifest(sha256, data))

    async def validate(self, job: Mapping[str, Any]) -> Validation:
        """Check a job without submitting it: its defaults, whether it fits the nodes, and why not.

        Raises ApiError (422 names the fields).
        """
        return await self._call(endpoints.validate(with_variables(job, os.environ)))

    async def job(self, job: int) -> JobView:
        """Return everything about one job."""
        return await self._call(endpoints.job(job))

    async def find_job(self, name: str) -> int:
        """Return the id of a job named as on the command line: an id, the name of your newest job
        of that name, or `last`. Raises NoSuchJobError."""
        return await self._run(endpoints.find_job(name))

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        pool: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobList:
        """Return one page of jobs, newest first; empty `states` means any."""
        return await self._call(endpoints.jobs(states, user, pool, name, limit, cursor))

    async def all_jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        pool: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> JobList:
        """Return the newest `limit` jobs, or all, fetching as many pages as needed."""
        return await self._run(endpoints.all_jobs(states, user, pool, name, limit))

    async def wait(self, job: int, timeout_s: float | None = None) -> JobSummary:
        """Wait for the job's end. Returns the job as it is then, or after `timeout_s` seconds."""
        return await self._run(endpoints.wait(job, timeout_s))

    async def cancel(
        self,
        job: int,
        *,
        reason: str = "",
        grace_s: float | None = None,
        force: bool = False,
    ) -> CancelAnswer:
        """Request a stop and return before the job has stopped. `grace_s` replaces the job's
        own."""
        return await self._call(endpoints.cancel(job, reason, grace_s, force=force))

    async def change(self, job: int, wanted: Mapping[str, Any]) -> ChangeAnswer:
        """Change a job that has not ended: `priority`, `time_limit` (None: no limit) and `name` as
        in a job file, or `hold` with a `reason`. Raises ApiError (409 names the conflict)."""
        return await self._call(endpoints.change(job, wanted))

    async def environment(self, job: int, node: str | None = None) -> EnvironmentView:
        """Return the environment of the job's last attempt, of each node or of one, without
        secrets."""
        return await self._call(endpoints.environment(job, node))

    async def explain(
        self,
        job: int,
        *,
        nodes: int | None = None,
        drained: Sequence[str] = (),
        time_limit_s: float | None = None,
    ) -> Explanation:
        """Explain why the job waits, or why it ran where it did and what ended it.

        For a waiting job, also: what if it asked for `nodes` nodes, `drained` were out of service,
        or its time limit was `time_limit_s`? Raises ApiError (409 if the job does not wait).
        """
        return await self._call(endpoints.explain(job, nodes, drained, time_limit_s))

    async def fabric(self, job: int) -> FabricView:
        """Return the fabric plan of the job's last attempt, with the reason for each value."""
        return await self._call(endpoints.fabric(job))

    async def stacks(self, job: int) -> StacksView:
        """Return the current stacks of a running job's ranks, grouped by equal stacks."""
        return await self._call(endpoints.stacks(job))

    async def evidence(self, job: int) -> Evidence:
        """Return the verdicts on the job's attempts, each with its evidence."""
        return await self._call(endpoints.evidence(job))

    async def signal(
        self, job: int, signal: str, *, rank: int | None = None, node: str | None = None
    ) -> SignalAnswer:
        """Send a signal (`USR1`, `SIGUSR1`, `10`) to the ranks of a running job, or to some of
        them.

        Not retried if the answer is lost, because the ranks may have received the signal.
        """
        return await self._call(endpoints.signal(job, signal, rank, node))

    async def rerun(
        self,
        job: int,
        key: str | None = None,
        *,
        sets: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> JobSummary:
        """Submit a job again as it was submitted, changed by `sets` (`nodes=4`) and kept off the
        nodes in `exclude`. As with `submit`, calls with the same `key` submit one job."""
        return await self._call(endpoints.rerun(job, key or os.urandom(16).hex(), sets, exclude))

    async def events(self, job: int, after: int | str = 0) -> EventList:
        """Return one page of a job's facts, oldest first, after sequence number `after`; empty if
        there are no more."""
        return await self._call(endpoints.events(job, after))

    def follow_events(
        self, job: int | None = None, after: int | str = 0
    ) -> AsyncIterator[EventView]:
        """Yield the events of a job (None: of everything) after sequence number `after`: past ones
        first, then new ones until the job ends.

        A cut stream resumes where it stopped: no event is missing or repeated.
        """
        from muster.client.event_stream import EventStream

        path = "/v1/events" if job is None else f"/v1/jobs/{job}/events"
        return self._read(EventStream(after), path, WATCH_S)

    async def nodes(self) -> NodeList:
        """Return all nodes, fetching as many pages as needed."""
        return await self._run(endpoints.all_nodes())

    async def node(self, name: str) -> NodeView:
        """Return the node of that name. Raises NoSuchNodeError."""
        return await self._run(endpoints.node(name))

    async def probe(self, name: str) -> NodeProbe:
        """Return what the coordinator knows of a node's GPUs, networks and RDMA."""
        return await self._call(endpoints.probe(name))

    async def check(self, name: str, key: str | None = None, *, mib: int = 16) -> JobSummary:
        """Submit a job that checks a node against the free nodes of its pool. As with `submit`,
        calls with the same `key` submit one job. Raises ApiError (409 if the node is not free). The
        findings are in the job's log, which `muster check` reads."""
        from muster.http.node_probe import CheckRequest

        return await self._call(
            endpoints.check(name, CheckRequest(mib), key or os.urandom(16).hex())
        )

    async def drain(
        self,
        name: str,
        reason: str,
        *,
        deadline_s: float | None = None,
        now: bool = False,
        after_checkpoint: bool = False,
    ) -> NodeAnswer:
        """Take a node out of service: it gets no jobs until it is resumed. Its jobs continue by
        default. With `deadline_s` they are stopped after that many seconds, with `now` at once, and
        with `after_checkpoint` when they have written a checkpoint. Jobs that have to leave are
        retried elsewhere, without using up a retry."""
        wanted = DrainRequest(reason, deadline_s, now, after_checkpoint)
        return await self._call(endpoints.drain(name, wanted))

    async def resume(self, name: str, *, check: bool = True) -> NodeAnswer:
        """Return a node to service. Raises ApiError (409 lists the problems, unless `check` is
        false)."""
        return await self._call(endpoints.resume(name, check=check))

    async def remove(self, name: str) -> NodeAnswer:
        """Forget a node that is gone, and return it as it was. Raises ApiError (409 if it is
        connected or may still run something)."""
        return await self._call(endpoints.remove(name))

    async def declare_lost(self, name: str) -> LostAnswer:
        """Declare that no process of a job is left on a disconnected node: its tasks are over.
        Raises ApiError (409 if it is connected)."""
        return await self._call(endpoints.lost(name))

    async def version(self) -> VersionView:
        """Return the coordinator's version, and the user and role of the token."""
        return await self._call(endpoints.version())

    async def audit(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        since: str | None = None,
        refused: bool = False,
        limit: int = 100,
    ) -> AuditList:
        """Return the newest matching entries of the audit log. Needs the role admin."""
        return await self._call(endpoints.audit(user, action, subject, since, refused, limit))

    async def users(self) -> UserList:
        """Return the users. Needs the role admin, as do all changes of users."""
        return await self._call(endpoints.users())

    async def add_user(
        self, name: str, role: Role = Role.USER, teams: Sequence[str] = ()
    ) -> UserAnswer:
        """Add a user, who has no token yet."""
        from muster.http.people import UserRequest

        return await self._call(endpoints.add_user(UserRequest(name, role, tuple(teams))))

    async def change_user(
        self,
        name: str,
        *,
        role: Role | None = None,
        teams: Sequence[str] | None = None,
        enable: bool = False,
    ) -> UserAnswer:
        """Change the role or the teams of a user; `enable` ends a `disable_user`."""
        from muster.http.people import UserChange

        wanted = UserChange(role, None if teams is None else tuple(teams), enable)
        return await self._call(endpoints.change_user(name, wanted))

    async def disable_user(self, name: str, *, end_jobs: bool) -> UserAnswer:
        """Accept no token of a user any more. With `end_jobs`, the user's jobs are cancelled."""
        return await self._call(endpoints.disable_user(name, end_jobs=end_jobs))

    async def tokens(self, user: str | None = None) -> TokenList:
        """Return your tokens, or as an admin those of a user or of all."""
        return await self._call(endpoints.tokens(user))

    async def create_token(self, wanted: TokenRequest) -> NewToken:
        """Create a token. Its text is in this answer only."""
        return await self._call(endpoints.create_token(wanted))

    async def revoke_token(self, name: str) -> TokenView:
        """Revoke a token, which may be your own, and return it as it was."""
        return await self._call(endpoints.revoke_token(name))

    async def call(self, wanted: Call[_T]) -> _T:
        """Make a call of `muster.client.endpoints` that has no method here."""
        return await self._call(wanted)

    def logs(
        self, job: int, query: LogQuery | None = None
    ) -> AsyncIterator[LogRecord | LogTrailer]:
        """Yield the records of a job's logs, and a trailer last.

        A cut stream resumes where it stopped: no byte is missing or repeated. It ends with a
        trailer or an error.
        """
        from muster.client.log_stream import LogQuery, LogStream

        wanted = query or LogQuery()
        patience_s = WATCH_S if wanted.follow else CHANGE_S
        return self._read(LogStream(wanted), f"/v1/jobs/{job}/logs", patience_s)

    async def _read(
        self, feed: ResumableStream[_T], path: str, patience_s: float
    ) -> AsyncGenerator[_T, None]:
        while True:
            lines = self._opened(feed, path, patience_s)
            # Close explicitly, so that the connection ends even if the reader stops early, without
            # waiting for garbage collection.
            async with contextlib.aclosing(_found(lines, feed)) as found:
                async for item in found:
                    yield item
            if feed.over:
                return
            await asyncio.sleep(feed.pause_s())

    async def _opened(
        self, feed: ResumableStream[_T], path: str, patience_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a stream; retries until the first one arrives."""
        query = feed.parameters()

        async def connect() -> tuple[bytes, AsyncGenerator[bytes, None]]:
            lines = self._transport.lines(path, query)
            first = await anext(lines, None)
            if first is None:
                raise feed.nothing()
            return first, lines

        first, rest = await self._persist(connect, patience_s)
        async with contextlib.aclosing(rest):
            yield first
            async for line in rest:
                yield line

    async def _run(self, steps: Steps[_T]) -> _T:
        """Make the calls of a procedure and return its result."""
        try:
            call = next(steps)
            while True:
                call = steps.send(await self._call(call))
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _call(self, call: Call[_T]) -> _T:
        async def step() -> bytes:
            return await self._transport.request(call)

        patience_s = call.patience_s
        body = await (step() if patience_s is None else self._persist(step, patience_s))
        return self._exchange.decode(call, body)

    async def _persist(self, step: Callable[[], Awaitable[_T]], patience_s: float) -> _T:
        """Run `step`, retrying transient failures for `patience_s` seconds."""
        try:
            result = await step()
        except ClientError as error:
            rules = self._patience.rules(error, patience_s)
            import tenacity

            result = await tenacity.AsyncRetrying(**rules)(step)
        self._patience.reached = True
        return result


async def _found(
    lines: AsyncGenerator[bytes, None], feed: ResumableStream[_T]
) -> AsyncGenerator[_T, None]:
    """Yield the items of one connection. A cut connection ends it without an error; `feed` decides
    whether to resume."""
    opened = False
    try:
        async with contextlib.aclosing(lines):
            async for line in lines:
                opened = True
                item = feed.take(line)
                if item is not None:
                    yield item
                if feed.over:
                    return
    except ClientError as error:
        if not opened or not error.passing:
            raise

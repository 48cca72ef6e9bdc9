"""The client for programs with an event loop. Importing it imports aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from muster.client import endpoints
from muster.client.async_transport import AsyncTransport
from muster.client.config import Settings, given_settings
from muster.client.endpoints import CHANGE_S, WATCH_S, Call, Steps
from muster.client.env_passthrough import with_variables
from muster.client.errors import ClientError
from muster.client.event_stream import EventStream
from muster.client.http_common import HttpContext
from muster.client.log_stream import LogQuery, LogStream
from muster.client.resumable_stream import ResumableStream
from muster.client.retry import OnTrouble, RetryPolicy
from muster.http.fabric import FabricView
from muster.http.job_actions import CancelAnswer, ChangeAnswer, SignalAnswer
from muster.http.job_evidence import Evidence
from muster.http.node_actions import DrainRequest, LostAnswer, NodeAnswer
from muster.http.node_probe import CheckRequest, NodeProbe
from muster.http.views import (
    EnvironmentView,
    EventList,
    EventView,
    Explanation,
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
from muster.protocol.hangs import StacksView
from muster.protocol.states import JobState

_T = TypeVar("_T")


class AsyncClient:
    """The async version of `Client`: `async with AsyncClient() as client: await client.job(42)`.

    Concurrent calls in one event loop share kept connections; `close` closes those of the running
    loop. Cancelling a call ends it at once.
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
        """The coordinator's clock at its last answer."""
        return self._exchange.server_time

    async def submit(self, job: Mapping[str, Any], key: str | None = None) -> JobSummary:
        """As `Client.submit`."""
        return await self._call(
            endpoints.submit(with_variables(job, os.environ), key or os.urandom(16).hex())
        )

    async def validate(self, job: Mapping[str, Any]) -> Validation:
        """As `Client.validate`."""
        return await self._call(endpoints.validate(with_variables(job, os.environ)))

    async def job(self, job: int) -> JobView:
        """As `Client.job`."""
        return await self._call(endpoints.job(job))

    async def find_job(self, name: str) -> int:
        """As `Client.find_job`."""
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
        """As `Client.jobs`."""
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
        """As `Client.all_jobs`."""
        return await self._run(endpoints.all_jobs(states, user, pool, name, limit))

    async def wait(self, job: int, timeout_s: float | None = None) -> JobSummary:
        """As `Client.wait`."""
        return await self._run(endpoints.wait(job, timeout_s))

    async def cancel(
        self,
        job: int,
        *,
        reason: str = "",
        grace_s: float | None = None,
        force: bool = False,
    ) -> CancelAnswer:
        """As `Client.cancel`."""
        return await self._call(endpoints.cancel(job, reason, grace_s, force=force))

    async def change(self, job: int, wanted: Mapping[str, Any]) -> ChangeAnswer:
        """As `Client.change`."""
        return await self._call(endpoints.change(job, wanted))

    async def environment(self, job: int) -> EnvironmentView:
        """As `Client.environment`."""
        return await self._call(endpoints.environment(job))

    async def explain(
        self, job: int, *, nodes: int | None = None, drained: Sequence[str] = ()
    ) -> Explanation:
        """As `Client.explain`."""
        return await self._call(endpoints.explain(job, nodes, drained))

    async def fabric(self, job: int) -> FabricView:
        """As `Client.fabric`."""
        return await self._call(endpoints.fabric(job))

    async def stacks(self, job: int) -> StacksView:
        """As `Client.stacks`."""
        return await self._call(endpoints.stacks(job))

    async def evidence(self, job: int) -> Evidence:
        """As `Client.evidence`."""
        return await self._call(endpoints.evidence(job))

    async def signal(
        self, job: int, signal: str, *, rank: int | None = None, node: str | None = None
    ) -> SignalAnswer:
        """As `Client.signal`."""
        return await self._call(endpoints.signal(job, signal, rank, node))

    async def rerun(
        self,
        job: int,
        key: str | None = None,
        *,
        sets: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> JobSummary:
        """As `Client.rerun`."""
        return await self._call(endpoints.rerun(job, key or os.urandom(16).hex(), sets, exclude))

    async def events(self, job: int, after: int | str = 0) -> EventList:
        """As `Client.events`."""
        return await self._call(endpoints.events(job, after))

    def follow_events(
        self, job: int | None = None, after: int | str = 0
    ) -> AsyncIterator[EventView]:
        """As `Client.follow_events`."""
        path = "/v1/events" if job is None else f"/v1/jobs/{job}/events"
        return self._read(EventStream(after), path, WATCH_S)

    async def nodes(self) -> NodeList:
        """As `Client.nodes`."""
        return await self._run(endpoints.all_nodes())

    async def node(self, name: str) -> NodeView:
        """As `Client.node`."""
        return await self._run(endpoints.node(name))

    async def probe(self, name: str) -> NodeProbe:
        """As `Client.probe`."""
        return await self._call(endpoints.probe(name))

    async def check(self, name: str, key: str | None = None, *, mib: int = 16) -> JobSummary:
        """As `Client.check`."""
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
        """As `Client.drain`."""
        wanted = DrainRequest(reason, deadline_s, now, after_checkpoint)
        return await self._call(endpoints.drain(name, wanted))

    async def resume(self, name: str, *, check: bool = True) -> NodeAnswer:
        """As `Client.resume`."""
        return await self._call(endpoints.resume(name, check=check))

    async def remove(self, name: str) -> NodeAnswer:
        """As `Client.remove`."""
        return await self._call(endpoints.remove(name))

    async def declare_lost(self, name: str) -> LostAnswer:
        """As `Client.declare_lost`."""
        return await self._call(endpoints.lost(name))

    async def version(self) -> VersionView:
        """As `Client.version`."""
        return await self._call(endpoints.version())

    def logs(
        self, job: int, query: LogQuery | None = None
    ) -> AsyncIterator[LogRecord | LogTrailer]:
        """As `Client.logs`."""
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
        # A coroutine function, because tenacity would not await the result of a lambda.
        async def step() -> bytes:
            return await self._transport.request(call)

        patience_s = call.patience_s
        body = await (step() if patience_s is None else self._persist(step, patience_s))
        return self._exchange.decode(call, body)

    async def _persist(self, step: Callable[[], Coroutine[Any, Any, _T]], patience_s: float) -> _T:
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

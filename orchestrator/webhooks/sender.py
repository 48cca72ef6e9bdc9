"""Delivers webhooks from the state, in order per address, until each is accepted.

Attempts and results are inputs, so the journal keeps them and a new process continues where this
one stopped. A receiver recognizes a repeated delivery by its id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Never
from weakref import WeakValueDictionary

import aiohttp
import msgspec
import structlog
from tenacity import (
    AsyncRetrying,
    RetryError,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from muster.daemon.resolver import ThreadedResolver
from muster.daemon.task_owner import TaskOwner
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.facts.inputs import WebhookAttempted
from orchestrator.core.webhooks.outbox import host_of
from orchestrator.shell.coordinator import Coordinator, events_key
from orchestrator.shell.new_webhooks import Delivery
from orchestrator.webhooks.allowlist import Place, refused, server_of
from orchestrator.webhooks.payload import headers, message

REQUEST_S: Final = 10.0
PAUSE_MAX_S: Final = 300.0
GIVE_UP_S: Final = 86_400.0
_AT_ONCE: Final = 16
AT_ONCE_OF_SERVER: Final = 4
"""Requests of one server, so that one that hangs leaves room for the others."""
# Of all error statuses, only these may succeed later.
_TRY_AGAIN: Final = frozenset({408, 425, 429})

_log = structlog.get_logger("muster.webhooks")


class DeliveryError(Exception):
    """The delivery failed for now; another try may succeed."""


class RefusedError(Exception):
    """The receiver will never accept this delivery."""


@dataclass(slots=True)
class _Line:
    """Queue of one address, and the task that delivers it."""

    waiting: deque[Delivery] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class WebhookSender:
    """Owns the connections to webhooks."""

    def __init__(
        self,
        coordinator: Coordinator,
        owner: TaskOwner,
        allowed: Sequence[Place],
        secret: bytes,
        *,
        pause_s: float = 1.0,
    ) -> None:
        self._coordinator = coordinator
        self._owner = owner
        self._allowed = tuple(allowed)
        self._secret = secret
        self._pause_s = pause_s
        self._lines: dict[str, _Line] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        # A server is here while a request of it is waiting or running.
        self._at_server: WeakValueDictionary[tuple[str, str, int], asyncio.Semaphore]
        self._at_server = WeakValueDictionary()

    async def run(self) -> Never:
        """Take new deliveries whenever the journal has grown."""
        key: Hashable = events_key(None)
        changes = self._coordinator.changes
        async with self._session() as http:
            while True:
                seen = {key: changes.count(key)}
                state = await self._coordinator.settled()
                for place in self._coordinator.webhooks.take():
                    job = state.jobs.get(place.job)
                    if job is not None:
                        self._take(http, job.spec.notify[place.hook], place)
                await changes.wait(seen)
                if changes.closed:
                    # The process is ending; the next one delivers the rest.
                    await asyncio.Future()

    def _session(self) -> aiohttp.ClientSession:
        """Return a session without proxies and cookies: only allowed addresses are contacted."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=ThreadedResolver()),
            timeout=aiohttp.ClientTimeout(total=REQUEST_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )

    def _take(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> None:
        line = self._lines.setdefault(url, _Line())
        line.waiting.append(place)
        if line.task is None:
            line.task = self._owner.spawn(self._tell_all(http, url, line), name="webhook")

    async def _tell_all(self, http: aiohttp.ClientSession, url: str, line: _Line) -> None:
        while line.waiting:
            place = line.waiting[0]
            problem = await self._tell(http, url, place)
            if problem:
                _log.warning("webhook_not_told", job=place[0], number=place[1], why=problem)
            await self._coordinator.put(WebhookAttempted(*place, problem))
            line.waiting.popleft()
        del self._lines[url]

    async def _tell(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> str:
        """Retry until it succeeds (returns "") or can never succeed (returns why)."""
        problem = refused(url, self._allowed)
        if problem is not None:
            return problem
        name, number, hook = place
        state = await self._coordinator.settled()
        job = state.jobs.get(name)
        notice = None if job is None else job.notices.get((number, hook))
        if job is None or notice is None:
            return ""
        left_s = notice.at + GIVE_UP_S - self._coordinator.now().wall
        tries = AsyncRetrying(
            retry=retry_if_exception_type(DeliveryError),
            wait=wait_random_exponential(multiplier=self._pause_s, max=PAUSE_MAX_S),
            stop=stop_after_delay(max(0.0, left_s)),
        )
        try:
            async for attempt in tries:
                with attempt:
                    await self._once(http, url, place)
        except RetryError as error:
            return str(error.last_attempt.exception())
        except RefusedError as error:
            return str(error)
        return ""

    async def _once(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> None:
        """Send one request. Raises DeliveryError and RefusedError."""
        name, number, hook = place
        state = await self._coordinator.settled()
        job = state.jobs[name]
        now = self._coordinator.now()
        told = message(state, job, number, job.notices[number, hook], now)
        body = msgspec.json.encode(told)
        server = server_of(url)
        at_server = self._at_server.setdefault(server, asyncio.Semaphore(AT_ONCE_OF_SERVER))
        try:
            async with (
                at_server,
                self._at_once,
                http.post(
                    url,
                    data=body,
                    headers=headers(self._secret, told, body, now, VERSION),
                    allow_redirects=False,
                ) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = _why(error, host_of(job, hook))
        else:
            if 200 <= status < 300:
                return
            problem = f"it answered {status}"
            if 300 <= status < 400:
                raise RefusedError(f"{problem}, and redirections are not followed")
            if status < 500 and status not in _TRY_AGAIN:
                raise RefusedError(problem)
        await self._coordinator.put(WebhookAttempted(*place, problem, over=False))
        raise DeliveryError(problem)


def _why(error: Exception, host: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} does not answer within {REQUEST_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{host} cannot be reached: {error.os_error.strerror or error.os_error}"
    return f"{host} cannot be reached: {type(error).__name__}"

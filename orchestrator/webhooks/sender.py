"""Delivers webhooks from the state, in order per address, until each is accepted.

Attempts and results are inputs, so the journal keeps them and a new process continues where this
one stopped. A receiver recognizes a repeated delivery by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Never
from urllib.parse import urlsplit

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
from orchestrator.shell.coordinator import Coordinator, events_key
from orchestrator.shell.new_webhooks import Delivery
from orchestrator.webhooks.allowlist import AllowedPlace, refused, server_of
from orchestrator.webhooks.payload import headers, message
from orchestrator.webhooks.turns import PAUSE_MAX_S, RequestSlots, UnusedTurnError

REQUEST_S: Final = 10.0
GIVE_UP_S: Final = 86_400.0
_AT_LEAST_S: Final = 3600.0
# Only these error statuses may succeed on a later attempt.
_TRY_AGAIN: Final = frozenset({408, 425, 429})

_log = structlog.get_logger("muster.webhooks")


class DeliveryError(Exception):
    """The delivery failed for now; another try may succeed."""


class DeliveryRefusedError(Exception):
    """The receiver will never accept this delivery."""


@dataclass(slots=True)
class _Line:
    """Queue of one address, and the task that delivers it."""

    waiting: dict[Delivery, None] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class WebhookSender:
    """Owns the connections to webhooks."""

    def __init__(
        self,
        coordinator: Coordinator,
        owner: TaskOwner,
        allowed: Sequence[AllowedPlace],
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
        self._line_of: dict[Delivery, _Line] = {}
        self.turns = RequestSlots(pause_s)

    async def run(self) -> Never:
        """Take new deliveries whenever the journal has grown."""
        key: Hashable = events_key(None)
        changes = self._coordinator.changes
        async with self._session() as http:
            while True:
                seen = {key: changes.count(key)}
                state = await self._coordinator.durable_state()
                for place in self._coordinator.webhooks.take():
                    job = state.jobs.get(place.job)
                    if job is not None:
                        self._take(http, job.spec.notify[place.hook], place)
                for place in self._coordinator.webhooks.take_dropped():
                    line = self._line_of.pop(place, None)
                    if line is not None:
                        del line.waiting[place]
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
        line.waiting[place] = None
        self._line_of[place] = line
        if line.task is None:
            line.task = self._owner.spawn(self._notify_all(http, url, line), name="webhook")

    async def _notify_all(self, http: aiohttp.ClientSession, url: str, line: _Line) -> None:
        while line.waiting:
            place = next(iter(line.waiting))
            problem = await self._notify(http, url, place)
            if place not in line.waiting:
                continue  # it was dropped meanwhile
            if problem:
                _log.warning("webhook_not_notified", job=place[0], number=place[1], why=problem)
            await self._coordinator.put(WebhookAttempted(*place, problem))
            if self._line_of.pop(place, None) is not None:
                del line.waiting[place]
        del self._lines[url]

    async def _notify(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> str:
        """Retry until it succeeds (returns "") or can never succeed (returns why)."""
        problem = refused(url, self._allowed)
        if problem is not None:
            return problem
        name, number, hook = place
        state = await self._coordinator.durable_state()
        job = state.jobs.get(name)
        webhook = None if job is None else job.queued_webhooks.get((number, hook))
        if job is None or webhook is None:
            return ""
        tries = AsyncRetrying(
            retry=retry_if_exception_type(DeliveryError),
            wait=wait_random_exponential(multiplier=self._pause_s, max=PAUSE_MAX_S),
            stop=stop_after_delay(tries_for_s(webhook.at, self._coordinator.now().wall)),
        )
        try:
            async for attempt in tries:
                with attempt:
                    await self._once(http, url, place)
        except RetryError as error:
            return str(error.last_attempt.exception())
        except DeliveryRefusedError as error:
            return str(error)
        return ""

    async def _once(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> None:
        """Send one request, unless the notice was dropped.

        Raises DeliveryError and RefusedError.
        """
        try:
            async with self.turns.turn(server_of(url)):
                status = await self._post(http, url, place)
        except UnusedTurnError:
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = _why(error, urlsplit(url).netloc)
        else:
            if 200 <= status < 300:
                return
            problem = f"it answered {status}"
            if 300 <= status < 400:
                raise DeliveryRefusedError(f"{problem}, and redirections are not followed")
            if status < 500 and status not in _TRY_AGAIN:
                raise DeliveryRefusedError(problem)
        await self._coordinator.put(WebhookAttempted(*place, problem, over=False))
        raise DeliveryError(problem)

    async def _post(self, http: aiohttp.ClientSession, url: str, place: Delivery) -> int:
        """Return the status of the answer. Raises UnusedTurnError if the notice was dropped."""
        name, number, hook = place
        state = await self._coordinator.durable_state()
        job = state.jobs.get(name)
        webhook = None if job is None else job.queued_webhooks.get((number, hook))
        if job is None or webhook is None:
            raise UnusedTurnError
        now = self._coordinator.now()
        content = message(state, job, number, webhook, now)
        body = msgspec.json.encode(content)
        async with http.post(
            url,
            data=body,
            headers=headers(self._secret, content, body, now, VERSION),
            allow_redirects=False,
        ) as answer:
            return answer.status


def _why(error: Exception, host: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} does not answer within {REQUEST_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{host} cannot be reached: {error.os_error.strerror or error.os_error}"
    return f"{host} cannot be reached: {type(error).__name__}"


def tries_for_s(at: float, now: float) -> float:
    """Return for how long a notification of `at` is tried from `now` (UTC seconds).

    An hour at least, because the wall clock may have jumped in between.
    """
    return max(_AT_LEAST_S, at + GIVE_UP_S - now)

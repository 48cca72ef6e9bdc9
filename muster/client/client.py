"""The coordinator's API as Python calls.

Calls that may be made twice without harm (reads, cancels, changes, submits with a key) are simply
made again, for a bounded time, when they meet a coordinator in the middle of a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from muster.client.errors import BadAnswerError, ClientError
from muster.client.settings import Settings
from muster.client.tail import LogQuery, read_logs
from muster.client.transport import READ_TIMEOUT_S, Query, Transport
from muster.protocol.http import (
    CancelAnswer,
    CancelRequest,
    ChangeAnswer,
    EventList,
    JobList,
    JobSummary,
    JobView,
    LogRecord,
    LogTrailer,
    NodeList,
    RerunRequest,
    SignalAnswer,
    SignalRequest,
    VersionView,
)
from muster.protocol.states import ENDED_STATES, JobState

_T = TypeVar("_T")

# How long a call keeps trying, in seconds. A question is asked by someone who waits for the
# answer; a submit outlasts a restart; who waits for a job outlasts an upgrade of the machine.
ASK_S: Final = 3.0
CHANGE_S: Final = 30.0
WATCH_S: Final = 900.0
LONG_POLL_S: Final = 30.0


class Client:
    """Calls one coordinator, synchronously; safe to use from several threads.

    `on_trouble(error, patience_s)` is told once for each outage that a call tries to outlast.
    """

    def __init__(
        self,
        url: str,
        token: str,
        ca: Path | None = None,
        *,
        on_trouble: Callable[[ClientError, float], None] | None = None,
    ) -> None:
        self._transport = Transport(url, token, ca)
        self._on_trouble = on_trouble
        self._reached = False

    @classmethod
    def of(
        cls,
        settings: Settings,
        on_trouble: Callable[[ClientError, float], None] | None = None,
    ) -> Client:
        """The client that `settings` describe."""
        return cls(settings.url, settings.token, settings.ca, on_trouble=on_trouble)

    @property
    def url(self) -> str:
        """Where the coordinator is."""
        return self._transport.url

    @property
    def server_time(self) -> datetime | None:
        """The coordinator's clock at its last answer: ages are measured by it."""
        return self._transport.server_time

    def submit(self, job: Mapping[str, Any], key: str) -> JobSummary:
        """Submit a job file's mapping. Under the same `key` it is submitted once, however often
        this is called. Raises ApiError (422 names the fields).
        """
        body = msgspec.json.encode(job)
        headers = {"Idempotency-Key": key}
        return self._call(CHANGE_S, JobSummary, "POST", "/v1/jobs", body=body, headers=headers)

    def job(self, job: int) -> JobView:
        """Everything about one job."""
        return self._call(ASK_S, JobView, "GET", f"/v1/jobs/{job}")

    def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobList:
        """One page of jobs, newest first; `states` empty means any."""
        query = {
            "state": ",".join(state.value for state in states) or None,
            "user": user,
            "limit": limit,
            "cursor": cursor,
        }
        return self._call(ASK_S, JobList, "GET", "/v1/jobs", query)

    def wait(self, job: int, timeout_s: float | None = None) -> JobSummary:
        """The job once it has ended, or as it is after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else deadline - time.monotonic()
            poll_s = round(min(max(left, 0.0), LONG_POLL_S), 3)
            summary = self._call(
                WATCH_S,
                JobSummary,
                "GET",
                f"/v1/jobs/{job}/wait",
                {"timeout_s": poll_s},
                timeout_s=poll_s + READ_TIMEOUT_S,
            )
            if summary.state in ENDED_STATES or (deadline is not None and left <= LONG_POLL_S):
                return summary

    def cancel(
        self,
        job: int,
        *,
        reason: str = "",
        grace_s: float | None = None,
        force: bool = False,
    ) -> CancelAnswer:
        """Ask for the job to be stopped; returns before it is."""
        body = msgspec.json.encode(CancelRequest(reason, grace_s, force))
        return self._call(CHANGE_S, CancelAnswer, "POST", f"/v1/jobs/{job}/cancel", body=body)

    def change(self, job: int, wanted: Mapping[str, Any]) -> ChangeAnswer:
        """Change a job that has not ended: `priority`, `time_limit` (None: none), `name`, as in a
        job file; `hold`, with a `reason`. Raises ApiError (409 says what is in the way).
        """
        body = msgspec.json.encode(wanted)
        return self._call(CHANGE_S, ChangeAnswer, "PATCH", f"/v1/jobs/{job}", body=body)

    def signal(
        self, job: int, signal: str, *, rank: int | None = None, node: str | None = None
    ) -> SignalAnswer:
        """Signal the ranks of a job that runs (`USR1`, `SIGUSR1`, `10`), or some of them.

        Not made again where the answer is lost: the ranks may have it.
        """
        body = msgspec.json.encode(SignalRequest(signal, rank, node))
        return self._call(None, SignalAnswer, "POST", f"/v1/jobs/{job}/signal", body=body)

    def rerun(
        self, job: int, key: str, *, sets: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> JobSummary:
        """Submit a job again as it was submitted, changed by `sets` (`nodes=4`) and kept off the
        nodes `exclude`. As `submit`, once under the same `key`.
        """
        body = msgspec.json.encode(RerunRequest(tuple(sets), tuple(exclude)))
        headers = {"Idempotency-Key": key}
        path = f"/v1/jobs/{job}/rerun"
        return self._call(CHANGE_S, JobSummary, "POST", path, body=body, headers=headers)

    def events(self, job: int, after: int = 0) -> EventList:
        """One page of the facts of a job, oldest first, beginning behind sequence number `after`;
        empty when there are no more.
        """
        return self._call(ASK_S, EventList, "GET", f"/v1/jobs/{job}/events", {"after": after})

    def nodes(self) -> NodeList:
        """All nodes."""
        return self._call(ASK_S, NodeList, "GET", "/v1/nodes")

    def version(self) -> VersionView:
        """The coordinator's version, and who it takes us for."""
        return self._call(ASK_S, VersionView, "GET", "/v1/version")

    def logs(self, job: int, query: LogQuery | None = None) -> Iterator[LogRecord | LogTrailer]:
        """The records of a job's logs, and its trailer last.

        A stream that is cut goes on where it stopped: no byte is missing, none comes twice. It
        ends by a trailer, or by an error.
        """
        wanted = query or LogQuery()
        return read_logs(
            lambda parameters: self._transport.lines(f"/v1/jobs/{job}/logs", parameters),
            wanted,
            lambda step: self.persist(step, WATCH_S if wanted.follow else CHANGE_S),
        )

    def persist(self, step: Callable[[], _T], patience_s: float) -> _T:
        """Do `step` again while it fails in passing, for `patience_s` seconds (fewer as long as
        the coordinator was never reached: then the address is probably wrong).
        """
        try:
            return self._done(step())
        except ClientError as error:
            if not error.passing:
                raise
            first = error
        # Loaded only now: a call that succeeds does not pay for it.
        import tenacity

        patience_s = patience_s if self._reached else min(patience_s, CHANGE_S)
        if self._on_trouble is not None:
            self._on_trouble(first, patience_s)
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, ClientError) and e.passing),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=3),
            stop=tenacity.stop_after_delay(patience_s),
            reraise=True,
        )
        return self._done(again(step))

    def _done(self, result: _T) -> _T:
        self._reached = True
        return result

    def _call(
        self,
        patience_s: float | None,
        kind: type[_T],
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> _T:
        def ask() -> bytes:
            return self._transport.request(method, path, query, body, headers, timeout_s)

        data = ask() if patience_s is None else self.persist(ask, patience_s)
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError(
                f"the answer of {self.url} to {method} {path} cannot be read: {error}",
                "compare `muster version` on both sides",
            ) from error

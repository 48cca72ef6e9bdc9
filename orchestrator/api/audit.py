"""Audit of requests, and GET /v1/audit."""

from collections import OrderedDict
from typing import Final

from aiohttp import web

from muster.http.audit import AuditEntry, AuditList
from muster.protocol.roles import Role
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import TokenClass, without_secrets
from orchestrator.api.http.access import FOREIGN, REFUSED, SUBJECT, TOKEN
from orchestrator.api.http.problems import request_id_of
from orchestrator.api.http.query_params import AuditQuery
from orchestrator.api.http.request_parsing import read_moment, read_query
from orchestrator.api.http.responses import reply
from orchestrator.api.http.route import ROUTE
from orchestrator.core.model.people import KnownToken
from orchestrator.shell.audit import AuditLog
from orchestrator.shell.coordinator import Coordinator

LOGIN: Final = "login"
_WINDOW_S: Final = 60.0
_REPEATS_MAX: Final = 1024
_ADDRESSES_MAX: Final = 64
_SUBJECT_CHARS_MAX: Final = 253
_CHANGES_MAX: Final = 16
"""Equal changes of a user in a window that are an entry each."""

_Repeats = OrderedDict[tuple[str, ...], tuple[float, int]]


class AuditApi:
    """Writes and reads the audit log."""

    def __init__(self, coordinator: Coordinator, log: AuditLog) -> None:
        self._coordinator = coordinator
        self._log = log
        self._repeats: _Repeats = OrderedDict()
        self._logins: _Repeats = OrderedDict()

    def observe(self, request: web.Request, status: int) -> None:
        """Record a request, once it is answered, if it belongs in the log."""
        token = request.get(TOKEN)
        if token is None:
            if status in (401, 429):
                self._failed_login(request, status)
            return
        reads = request.method in {"GET", "HEAD"}
        if token.class_ is TokenClass.JOIN or (
            reads and status not in (401, 403) and FOREIGN not in request
        ):
            return
        route = request.get(ROUTE)
        action = "" if route is None else route.action.value
        count = 1
        works_for_all = self._works_for_all(token)
        if not works_for_all:
            # A refusal may name anything; a change names something that the user has.
            of = "" if status >= 400 else _subject(request)
            count = self._count((token.user, action, str(status), of), self._repeats)
            if status < 400 and count <= _CHANGES_MAX:
                count = 1
        own = status < 400 and not works_for_all
        self._add(request, status, action, token, count, own=own)

    def _works_for_all(self, token: KnownToken) -> bool:
        """True for tokens of operators and admins: each of their entries is kept."""
        known = self._coordinator.state.people.users.get(token.user)
        return (
            known is not None
            and known.role.includes(Role.OPERATOR)
            and (token.role is None or token.role.includes(Role.OPERATOR))
        )

    def _add(
        self,
        request: web.Request,
        status: int,
        action: str,
        token: KnownToken | None,
        count: int,
        *,
        own: bool = False,
    ) -> None:
        """Record a request, which is the `count`th one of its kind. Of many, the first, second,
        fourth ... is recorded.
        """
        if count & (count - 1):
            return
        route = request.get(ROUTE)
        self._log.add(
            AuditEntry(
                at=timestamp(self._coordinator.now().wall),
                address=request.remote or "",
                action=action,
                status=status,
                user="" if token is None else token.user,
                token="" if token is None else token.id,
                method=request.method,
                route="" if route is None else route.path,
                subject=_subject(request),
                request_id=request_id_of(request),
                count=count,
            ),
            own=own,
        )

    def _failed_login(self, request: web.Request, status: int) -> None:
        """Count failed logins by address and by the token that is not valid any more."""
        token = request.get(REFUSED)
        key = request.remote or "", "" if token is None else token.id
        now, logins = self._coordinator.now().mono, self._logins
        while logins and now - next(iter(logins.values()))[0] > _WINDOW_S:
            logins.popitem(last=False)
        if key not in logins and len(logins) >= _ADDRESSES_MAX:
            # So many at once must not overwrite the log.
            key = "", ""
        count = self._count(key, logins)
        self._add(request, status, LOGIN, token, count)

    def _count(self, key: tuple[str, ...], repeats: _Repeats) -> int:
        """Return how often there was something equal within a minute, with this time."""
        now = self._coordinator.now().mono
        since, count = repeats.pop(key, (now, 0))
        if now - since > _WINDOW_S:
            since, count = now, 0
        repeats[key] = since, count + 1
        if len(repeats) > _REPEATS_MAX:
            repeats.popitem(last=False)
        return count + 1

    async def show(self, request: web.Request) -> web.Response:
        query = read_query(request, AuditQuery)
        now = self._coordinator.now().wall
        since = None if query.since is None else read_moment("since", query.since, now)

        def matches(entry: AuditEntry) -> bool:
            return (
                (query.user is None or entry.user == query.user)
                and (query.action is None or entry.action == query.action)
                and (query.subject is None or entry.subject == query.subject)
                and (since is None or entry.at.timestamp() >= since)
                and (not query.refused or entry.status >= 400)
            )

        return reply(AuditList(await self._log.newest(matches, query.limit)))


def _subject(request: web.Request) -> str:
    subject = request.get(SUBJECT, request.match_info.get("id", ""))
    return without_secrets(subject)[:_SUBJECT_CHARS_MAX]

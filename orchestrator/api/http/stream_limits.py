"""Limits on streams: answers that last until something ends (`logs -f`, `events -f`)."""

from collections import Counter

from aiohttp import web

from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import QUERY, ROUTE, STREAM, Handler

_HINT = "close streams that nobody reads (logs -f, events -f), or raise {} in the configuration"


def lasts(request: web.Request) -> bool:
    """True if the user asks for a stream that stays open."""
    route = request.get(ROUTE)
    if route is None or not route.items:
        return False
    follow = getattr(request[QUERY], "follow", False)
    return follow or STREAM in request.headers.get("Accept", "")


class StreamLimits:
    """The streams that are open, by user. Each change costs the loop some time for each of them."""

    def __init__(self, *, per_user_max: int, total_max: int) -> None:
        self._per_user_max = per_user_max
        self._total_max = total_max
        self._open: Counter[str] = Counter()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Belongs inside of what checks the access and parses the query."""
        if not lasts(request):
            return await handler(request)
        user = request[TOKEN].user
        self._check(user)
        self._open[user] += 1
        try:
            return await handler(request)
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]

    def _check(self, user: str) -> None:
        """Raises ApiError (429, 503)."""
        if self._open[user] >= self._per_user_max:
            raise ApiError(
                429,
                "too_many_streams",
                f"user {user} has {self._per_user_max} streams open, which is the limit of one",
                _HINT.format("limits.streams_per_user_max"),
                headers={"Retry-After": "5"},
            )
        if self._open.total() >= self._total_max:
            raise ApiError(
                503,
                "too_many_streams",
                f"{self._total_max} streams are open, which is the limit of all users together",
                _HINT.format("limits.streams_max"),
                headers={"Retry-After": "5"},
            )

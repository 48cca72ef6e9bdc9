"""A route: its handler, its action, and its description for the schema."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MethodType
from typing import Any, Final

from aiohttp import web

from orchestrator.api.http.query_params import NoQuery
from orchestrator.core.rights.rules import Action

JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
JOB: Final = "a job file"
"""Placeholder for a body that is a job, as JSON or YAML."""

BYTES: Final = "application/octet-stream"
"""Placeholder for a body of bytes, and its type."""

JOB_PATH: Final = "/v1/jobs/{id}"
"""Beginning of the paths that name a job."""
TOKEN_PATH: Final = "/v1/tokens/{id}"  # noqa: S105 - a path
"""Beginning of the paths that name a token."""

Answers = Mapping[int, Mapping[str, Any]]
"""Type of the body (None: any text) by status and content type."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Method = Callable[[Any, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route cannot be made without an action and a description.

    `handler` is a method of an API class; `bind` finds its object. `headers` are the request
    headers that the route reads, `answer_headers` those of its successful responses. `items` is the
    element type of a stream. `problems` are its own error statuses besides the common ones.
    """

    method: str
    path: str
    handler: Method
    action: Action
    summary: str
    _: KW_ONLY
    answers: Answers
    query: type = NoQuery
    body: Any = None
    items: tuple[type, ...] = ()
    headers: tuple[str, ...] = ()
    answer_headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()

    def bind(self, apis: Iterable[object]) -> Handler:
        """Return the handler as a method of the one of `apis` that has it. Raises LookupError."""
        name = self.handler.__name__
        for api in apis:
            if getattr(type(api), name, None) is self.handler:
                return MethodType(self.handler, api)
        raise LookupError(f"no object for the handler of {self.method} {self.path}")


ROUTE: Final = web.RequestKey("route", Route)
QUERY: Final = web.RequestKey("query", object)


def as_json(kind: type, status: int = 200) -> Answers:
    return {status: {JSON: kind}}


def as_text(content_type: str = "text/plain") -> Answers:
    return {200: {content_type: None}}

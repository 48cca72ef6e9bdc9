"""Description of a route: what it reads and returns. The schema is generated from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from orchestrator.api.http.query_params import NoQuery

JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
JOB: Final = "a job file"
"""Placeholder for a body that is a job, as JSON or YAML."""

Answers = Mapping[int, Mapping[str, Any]]
"""Type of the body (None: any text) by status and content type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDoc:
    """Description of a route. `headers` are the request headers that it reads, `answer_headers`
    those of its successful responses. `items` is the element type of a stream. `problems` are its
    own error statuses besides the common ones.
    """

    summary: str
    answers: Answers
    query: type = NoQuery
    body: Any = None
    items: tuple[type, ...] = ()
    headers: tuple[str, ...] = ()
    answer_headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()


ABOUT: Final = web.RequestKey("about", RouteDoc)
QUERY: Final = web.RequestKey("query", object)


def as_json(kind: type, status: int = 200) -> Answers:
    return {status: {JSON: kind}}


def as_text(content_type: str = "text/plain") -> Answers:
    return {200: {content_type: None}}

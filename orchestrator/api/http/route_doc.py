"""Description of a route: what it reads and returns. The schema is generated from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from orchestrator.api.http.query_params import NoQuery

JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
JOB: Final = "a job file"
"""Stands for a body that is a job, as JSON or YAML."""

Answers = Mapping[int, Mapping[str, Any]]
"""By status, and by content type, the type of the body (None: any text)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDoc:
    """`headers` are those that the route itself looks at, `answer_headers` those of its good
    answers; `items` what a stream consists of; `problems` the statuses of its own, besides those
    that any route has.
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

"""OpenAPI 3.1 schema, generated from the routes and from the types that parse requests."""

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from muster.http.views import Problem
from muster.spec.schema import job_schema
from orchestrator.api.http.job_body import JSON_TYPES, YAML_TYPES
from orchestrator.api.http.problems import CONTENT_TYPE
from orchestrator.api.http.query_params import EVENT_ID
from orchestrator.api.http.route import BYTES, JOB, JSON, Route
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.rights.principals import NOBODY
from orchestrator.core.rights.rules import may_with_some

Schema = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_ANY: Final = (400, 408, 414, 421, 429, 431, 500, 503)
_WITH_TOKEN: Final = (401, 403)
_WITH_BODY: Final = (413, 415)
_JOB_ID: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
_SHA256: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TASK_ID: Final[Schema] = {"type": "string", "pattern": "^[1-9][0-9]*\\.[1-9][0-9]*\\.[0-9]+$"}
_WHEEL: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9._+-]{1,200}$"}
_NODE_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 253}
_REQUEST_HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "Idempotency-Key": (
        "The key of a submit; repeating it returns the same job.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    ),
    "If-Match": ("The ETag of the job as last read by the caller.", {"type": "string"}),
    "X-Muster-Ticket": (
        "The ticket that came with the command to prepare the task.",
        {"type": "string", "maxLength": 128},
    ),
    "Last-Event-ID": (
        "Continue after this event.",
        {"type": "string", "pattern": EVENT_ID},
    ),
}
_ANSWER_HEADERS: Final[Schema] = {
    "X-Request-Id": {
        "schema": {"type": "string"},
        "description": "The request id, also in the coordinator's log.",
    },
}
_OWN_ANSWER_HEADERS: Final[Schema] = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "The job's revision, for If-Match.",
        "required": True,
    },
    "Location": {
        "schema": {"type": "string"},
        "description": "The path of the job.",
        "required": True,
    },
}


class SchemaApi:
    """GET /openapi.json."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._body = msgspec.json.encode(openapi(routes))

    async def show(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._body, content_type=JSON)


def openapi(routes: Sequence[Route]) -> Schema:
    """Return the whole schema."""
    types = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    found = dict(zip(types, schemas, strict=True))
    queries = {route.query for route in routes}
    job = {key: value for key, value in job_schema().items() if key != "$schema"}
    parameters = {query: _query(components[query.__name__]) for query in queries}
    paths: dict[str, Schema] = {}
    for route in routes:
        operation = _operation(route, found, parameters[route.query])
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for query in queries:
        del components[query.__name__]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": VERSION,
            "description": "Times are RFC 3339 in UTC with `Z`; durations are seconds.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Job": job},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _types(routes: Iterable[Route]) -> Iterable[Any]:
    yield Problem
    for route in routes:
        yield route.query
        if route.body not in (None, JOB, BYTES):
            yield route.body
        yield from route.items
        for media in route.answers.values():
            yield from (kind for kind in media.values() if kind is not None)


def _operation(route: Route, found: Mapping[Any, Schema], query: list[Schema]) -> Schema:
    items = [found[kind] for kind in route.items]
    made: Schema = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [*_path(route.path), *query, *map(_header, route.headers)],
        "responses": {
            **{
                str(status): _answer(status, media, items, found, route.answer_headers)
                for status, media in route.answers.items()
            },
            **{str(status): _problem(status, found) for status in _problems(route)},
        },
        "x-muster-action": route.action.value,
    }
    if _is_open(route):
        made["security"] = []
    if route.body is not None:
        made["requestBody"] = _body(route, found)
    return made


def _is_open(route: Route) -> bool:
    return may_with_some(NOBODY, route.action)


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path)
    return "_".join([route.method.lower(), *words])


def _problems(route: Route) -> list[int]:
    found = {*_ANY, *route.problems}
    if not _is_open(route):
        found.update(_WITH_TOKEN)
    if "{" in route.path:
        found.add(404)
    if route.body is not None:
        found.update(_WITH_BODY)
    return sorted(found)


def _path(path: str) -> list[Schema]:
    kinds = {
        "/nodes/": _NODE_ID,
        "/bundles/": _SHA256,
        "/tasks/": _TASK_ID,
        "/wheels/": _WHEEL,
    }
    kind = next((kind for part, kind in kinds.items() if part in path), _JOB_ID)
    return [
        {"name": name, "in": "path", "required": True, "schema": kind}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query(component: Schema) -> list[Schema]:
    """Return each property of a query's struct as a parameter. Parameters are never null."""
    made = []
    for name, given in component.get("properties", {}).items():
        schema = {key: value for key, value in given.items() if key != "description"}
        options = [each for each in schema.pop("anyOf", []) if each != {"type": "null"}]
        if len(options) == 1:
            schema |= options[0]
        elif options:
            schema["anyOf"] = options
        if schema.get("default", 0) is None:
            del schema["default"]
        parameter = {"name": name, "in": "query", "description": given.get("description", "")}
        if schema.get("type") == "array":
            schema["minItems"] = 1
            parameter |= {"style": "form", "explode": False}
        made.append({**parameter, "schema": schema})
    return made


def _header(name: str) -> Schema:
    description, schema = _REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _body(route: Route, found: Mapping[Any, Schema]) -> Schema:
    if route.body is JOB:
        schema = {"schema": {"$ref": _REF.format(name="Job")}}
        return {
            "required": True,
            "content": dict.fromkeys((*JSON_TYPES, *YAML_TYPES), schema),
        }
    if route.body == BYTES:
        return {"required": True, "content": {BYTES: {"schema": {"type": "string"}}}}
    return {"required": False, "content": {JSON: {"schema": found[route.body]}}}


def _answer(
    status: int,
    media: Mapping[str, Any],
    items: list[Schema],
    found: Mapping[Any, Schema],
    own_headers: tuple[str, ...],
) -> Schema:
    content: dict[str, Schema] = {}
    for name, kind in media.items():
        if kind is not None:
            content[name] = {"schema": found[kind]}
        elif name == JSON:
            content[name] = {"schema": {"type": "object"}}
        else:
            content[name] = {"schema": {"type": "string"}}
            if items:
                content[name]["x-item-schemas"] = items
    headers = _ANSWER_HEADERS | {name: _OWN_ANSWER_HEADERS[name] for name in own_headers}
    made: Schema = {"description": HTTPStatus(status).phrase, "headers": headers}
    return {**made, "content": content} if content else made


def _problem(status: int, found: Mapping[Any, Schema]) -> Schema:
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _ANSWER_HEADERS,
        "content": {CONTENT_TYPE: {"schema": found[Problem]}},
    }

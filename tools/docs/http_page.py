"""Generator of docs/reference/http-api.md from the descriptions of the routes:
`python -m tools.docs.http_page > docs/reference/http-api.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.http.views import Problem
from orchestrator.api.http.query_params import NoQuery
from orchestrator.api.http.route import BYTES, JOB, Route
from orchestrator.api.routes import ROUTES
from tools.docs.wrap import wrapped

Schema = Mapping[str, Any]

_HEAD: Final = """\
# The HTTP API

For programs that talk to the coordinator without the [Python client](client.md): every route with
what it reads and returns. Made by `python -m tools.docs.http_page > docs/reference/http-api.md`.
`GET /openapi.json` has the same as OpenAPI 3.1.

- Send the token as `Authorization: Bearer TOKEN`. Only `/healthz` and `/readyz` need none. A join
  token is valid for `/v1/agent` and `/v1/agent/logs` only, a user's token for the other routes, as
  far as the user's role allows: see [rights](rights.md).
- Bodies are JSON. A job may also be YAML (`Content-Type: application/yaml`). Unknown fields of a
  body are an error.
- Times are RFC 3339 in UTC with `Z`. Durations are seconds.
- Every response has `X-Request-Id`, which is also in the coordinator's log.
- Errors are `application/problem+json` with the object [Problem](#problem). Besides the statuses
  named below, any route may return 400, 401, 403, 404, 405, 408, 413, 414, 415, 421, 429, 431, 500
  and 503. After 429 and 503, wait as long as `Retry-After` says.
- A submit with an `Idempotency-Key` that was used before returns the first job, with status 200. A
  submit with the same key and another body is refused (409).
- Lists come in pages: send the `cursor` of a page to get the next one.
- Streams (`follow=true`) are Server-Sent Events, and NDJSON for logs. Send `Last-Event-ID` to
  continue a stream of events after a lost connection.
"""
_SUBJECTS: Final = (
    ("Jobs", "/v1/jobs"),
    ("Nodes", "/v1/nodes"),
    ("Events", "/v1/events"),
    ("The coordinator", "/v1/version"),
    ("Audit", "/v1/audit"),
    ("Health and metrics", "/"),
)


def page() -> str:
    """Return the whole page."""
    return wrapped("\n".join([_HEAD, *_routes(), "## Objects", "", *_objects()]))


def _routes() -> Iterator[str]:
    left = list(ROUTES)
    for subject, prefix in _SUBJECTS:
        yield f"## {subject}"
        yield ""
        for route in [route for route in left if route.path.startswith(prefix)]:
            left.remove(route)
            yield from _route(route)


def _route(route: Route) -> Iterator[str]:
    yield f"### {route.method} {route.path}"
    yield ""
    yield route.summary
    yield ""
    if route.query is not NoQuery:
        yield "| query parameter | type | default | |"
        yield "|---|---|---|---|"
        for name, schema in _schema_of(route.query)["properties"].items():
            default = "" if schema.get("default") is None else f"`{_json(schema['default'])}`"
            yield _row(f"`{name}`", _type(schema), default, schema.get("description", ""))
        yield ""
    if route.headers:
        yield f"- Headers: {', '.join(f'`{name}`' for name in route.headers)}"
    if route.body is JOB:
        yield "- Body: a [job file](job-file.md)"
    elif route.body == BYTES:
        yield f"- Body: `{BYTES}`"
    elif route.body is not None:
        yield f"- Body: {_link(route.body.__name__)}"
    for status, media in route.answers.items():
        kinds = " or ".join(
            f"`{content}`" if kind is None else _link(kind.__name__)
            for content, kind in media.items()
        )
        headers = "".join(f", with `{name}`" for name in route.answer_headers)
        yield f"- {status}: {kinds or 'no body'}{headers}"
    if route.items:
        yield f"- Items of the stream: {', '.join(_link(kind.__name__) for kind in route.items)}"
    if route.problems:
        yield f"- Specific errors: {', '.join(map(str, route.problems))}"
    yield ""


def _objects() -> Iterator[str]:
    components = msgspec.json.schema_components(list(_kinds()), ref_template="{name}")[1]
    queries = {route.query.__name__ for route in ROUTES}
    for name, schema in sorted(components.items()):
        if name in queries:
            continue
        yield f"### {name}"
        yield ""
        if "enum" in schema:
            yield f"One of {', '.join(f'`{word}`' for word in schema['enum'])}."
            yield ""
            continue
        if not schema.get("properties"):
            yield "An object without fields."
            yield ""
            continue
        yield "| field | type | default |"
        yield "|---|---|---|"
        for field, value in schema["properties"].items():
            default = f"`{_json(value['default'])}`" if "default" in value else "required"
            yield _row(f"`{field}`", _type(value), default)
        yield ""


def _kinds() -> Iterator[Any]:
    yield Problem
    for route in ROUTES:
        if route.body not in (None, JOB, BYTES):
            yield route.body
        yield route.query
        yield from route.items
        for media in route.answers.values():
            yield from (kind for kind in media.values() if kind is not None)


def _schema_of(kind: type) -> Schema:
    found: Schema = msgspec.json.schema_components([kind])[1][kind.__name__]
    return found


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
        return f"list of {_type(items)}" if items else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_type(schema['additionalProperties'])}"
    return str(kind)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())

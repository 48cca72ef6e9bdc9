"""Parsing of a job from a request body, JSON or YAML."""

from collections.abc import Callable
from typing import Final, NamedTuple

from aiohttp import web

from muster.http.views import FieldProblem
from muster.spec.errors import ProblemKind, SpecError
from muster.spec.model import JobSpec
from muster.spec.parse import parse_document
from muster.spec.pool_defaults import fill_in
from muster.spec.yaml.loader import Document, read_json, read_yaml
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.request_parsing import read_body
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.shell.bulk_reads import BulkReads

# Larger bodies are parsed in a thread: PyYAML reads about 100 KB a second.
_INLINE_BYTES: Final = 4096
WAITING_MAX: Final = 32
"""Number of a user's larger bodies that may wait for a thread."""
JSON_TYPES: Final = ("application/json",)
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


class Read(NamedTuple):
    """A parsed job, the keys that its pool's defaults filled in, and the job as requested
    (`asked`), which does not depend on the defaults.
    """

    spec: JobSpec
    filled: tuple[str, ...]
    asked: object


async def spec_body(request: web.Request, rules: SubmitRules, parsers: BulkReads) -> Read:
    """Return the checked job. Raises ApiError (400, 408, 415, 429; 422 names every wrong field)."""
    if request.content_type in JSON_TYPES:
        read = read_json
    elif request.content_type in YAML_TYPES:
        read = read_yaml
    else:
        raise ApiError(
            415,
            "unsupported_media_type",
            f"a job cannot be read from {request.content_type}",
            "send `Content-Type: application/json` or `Content-Type: application/yaml`",
        )
    raw = await read_body(request)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ApiError(
            400, "bad_encoding", f"the body is not UTF-8 text (byte {error.start})"
        ) from error

    def parse() -> Read:
        asked = read(text)
        document, filled = fill_in(asked, rules.defaults)
        spec = parse_document(document)
        return Read(spec, filled, _alone(asked) if filled else spec)

    try:
        made = parse() if len(text) <= _INLINE_BYTES else await _in_turn(request, parsers, parse)
    except SpecError as error:
        raise spec_problem(error) from error
    return made


async def _in_turn(request: web.Request, parsers: BulkReads, parse: Callable[[], Read]) -> Read:
    user = request[TOKEN].user
    if parsers.waiting(user) >= WAITING_MAX:
        raise ApiError(
            429,
            "too_many_submits",
            f"{WAITING_MAX} large jobs of {user} wait to be parsed, which is the limit",
            "wait, then submit again with the same Idempotency-Key",
            headers={"Retry-After": "5"},
        )
    return await parsers.slice(user, parse)


def _alone(document: Document) -> object:
    """Return the job without its pool's defaults, or as written if it is invalid without them."""
    try:
        return parse_document(document)
    except SpecError:
        return document.tree


def spec_problem(error: SpecError) -> ApiError:
    """Return the error that lists the wrong fields of a job."""
    fields = [
        FieldProblem(
            p.field,
            p.value or "",
            p.message if p.line is None else f"line {p.line}: {p.message}",
            p.hint,
        )
        for p in error.problems
    ]
    if any(problem.kind is ProblemKind.SYNTAX for problem in error.problems):
        return ApiError(400, "bad_syntax", str(error), problems=fields)
    return ApiError(422, "bad_job", str(error), problems=fields)

"""Requests that are to count once, or only while things are as the caller saw them (RFC 9110, 13).

An ETag names a revision of a job: how many facts have changed it, in this life of the coordinator.
A revision that was shown but not yet on disk when the process died may come again with other
content, so the epoch is part of it, and after a restart the caller looks once more.
"""

import hashlib
import re
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from orchestrator.api.http.problems import ApiError
from orchestrator.core.model.state import Job, State

_KEY_CHARS_MAX: Final = 255
_TAGS_MAX: Final = 16
_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e]*"'
_TAGS: Final = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
_OURS: Final = re.compile(r'"([0-9]{1,18})\.([0-9]{1,18})"')


def job_etag(state: State, job: Job) -> str:
    """Of the job as it is now. Its `reason` may be worded anew without a new revision."""
    return f'"{state.epoch}.{job.revision}"'


def wanted_revisions(
    request: web.Request, state: State, *, required: bool = False
) -> frozenset[int] | None:
    """The revisions of a job for which its `If-Match` lets the request pass; None is any.

    Who decides compares with `Job.revision`, as only there nothing can come between, and declines
    with the code CHANGED. Empty where none of the tags can be one of now. Raises ApiError (400 for
    what is no list of tags; 428 where the header is missing though `required`).
    """
    given = request.headers.getall("If-Match", [])
    if not given:
        if not required:
            return None
        raise ApiError(
            428,
            "precondition_required",
            "this request must say which revision of the job it is meant for",
            "send the ETag of GET /v1/jobs/{id} as `If-Match`",
        )
    text = ",".join(given).strip()
    if text == "*":
        return None
    tags = re.findall(_TAG, text) if _TAGS.fullmatch(text) else []
    if not 0 < len(tags) <= _TAGS_MAX:
        raise ApiError(
            400,
            "bad_if_match",
            f"If-Match is neither * nor a list of at most {_TAGS_MAX} ETags",
            "send the ETag of GET /v1/jobs/{id} as it came, with its quotes",
        )
    ours = [match for tag in tags if (match := _OURS.fullmatch(tag)) is not None]
    return frozenset(int(match[2]) for match in ours if int(match[1]) == state.epoch)


def idempotency_key(request: web.Request) -> str:
    """The request's `Idempotency-Key`, empty where it has none. Raises ApiError (400)."""
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return ""
    key = given[0]
    if len(given) > 1 or not 0 < len(key) <= _KEY_CHARS_MAX or not _printable(key):
        raise ApiError(
            400,
            "bad_idempotency_key",
            f"the Idempotency-Key is not one of 1 to {_KEY_CHARS_MAX} printable ASCII characters",
            "use a random UUID",
        )
    return key


def request_digest(asked: object, about: str = "") -> str:
    """SHA-256 (hex) of what was asked for, and about what: it tells a request that comes again
    under its key from another.

    What is at its default is not in it, so that a release with one more field still knows the
    requests that came before it.
    """
    said = msgspec.json.encode(_said(asked), order="deterministic")
    return hashlib.sha256(said + about.encode(errors="replace")).hexdigest()


def _said(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            said = {
                field.name: _said(given)
                for field in fields(value)
                if (given := getattr(value, field.name)) != _default(field)
            }
            return [value.__struct_config__.tag, said]
        case list() | tuple():
            return [_said(item) for item in value]
        case dict():
            return {key: _said(item) for key, item in value.items()}
        case _:
            return value


def _default(field: FieldInfo) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()

"""Idempotency keys and conditional requests (RFC 9110, 13).

An ETag names a revision of a job: the number of facts that changed it in this epoch of the
coordinator. The epoch is part of it, because a revision that was shown before a crash and not yet
on disk may recur with other content. So after a restart the caller must read the job again.
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
    """Return the ETag of a job. Its `reason` may change without a new revision."""
    return f'"{state.epoch}.{job.revision}"'


def wanted_revisions(
    request: web.Request, state: State, *, required: bool = False
) -> frozenset[int] | None:
    """Return the revisions of a job that its `If-Match` allows; None allows any.

    The core compares them with `Job.revision`, because only there is the check atomic, and declines
    with the code CHANGED. The result is empty if no tag can match. Raises ApiError (400 for a
    malformed list of tags; 428 if a `required` header is missing).
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
    """Return the request's `Idempotency-Key`, or "". Raises ApiError (400)."""
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
    """Return the SHA-256 (hex) of a request and its subject. It distinguishes a repeated request
    from another one under the same key.

    Default values are left out, so that a release with a new field still recognizes older requests.
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

"""Cursors of paged lists. They are opaque to callers, because their contents may change."""

import base64
import binascii
from typing import Final

from orchestrator.api.http.problems import ApiError

_TEXT_BYTES_MAX: Final = 253


def make_cursor(kind: str, place: str) -> str:
    """Return the cursor for the page of the list `kind` that begins after `place`."""
    return base64.urlsafe_b64encode(f"{kind}<{place}".encode()).decode().rstrip("=")


def read_cursor(kind: str, cursor: str) -> str:
    """Return the place of a cursor. Raises ApiError (400)."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    place = text.removeprefix(f"{kind}<")
    if place == text or not place or len(place) > _TEXT_BYTES_MAX:
        raise bad_cursor()
    return place


def bad_cursor() -> ApiError:
    return ApiError(
        400,
        "bad_cursor",
        "the cursor is not from a page of this list",
        "leave it out to read from the start",
    )

"""Allowlist of webhook addresses.

Jobs name their own webhooks. Without this list, any submitter could reach every address that the
coordinator can reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from muster.spec.errors import InvalidValueError
from muster.spec.field_readers import webhook

_PORTS: Final = {"http": 80, "https": 443}
NONE_ALLOWED: Final = "no webhook is allowed: the coordinator's configuration has no webhooks.allow"


class AllowedPlace(NamedTuple):
    """Addresses of one server at this path or below it."""

    scheme: str
    host: str
    port: int
    path: str

    def has(self, url: str) -> bool:
        found = _place(urlsplit(url))
        below = self.path if self.path.endswith("/") else f"{self.path}/"
        return found[:3] == self[:3] and (found.path == self.path or found.path.startswith(below))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def read_allowed(entries: Sequence[str]) -> tuple[AllowedPlace, ...]:
    """Parse the operator's list: each entry allows all addresses below it. Raises ValueError."""
    made = []
    for entry in entries:
        try:
            parts = urlsplit(webhook(entry))
        except InvalidValueError as error:
            raise ValueError(f"webhooks.allow: {entry!r} {error.message}; {error.hint}") from error
        if parts.query:
            raise ValueError(f"webhooks.allow: {entry!r} has a query; leave it out")
        made.append(_place(parts))
    return tuple(made)


def refused(url: str, allowed: Iterable[AllowedPlace]) -> str | None:
    """Return why an address is not allowed, or None."""
    places = list(allowed)
    if any(place.has(url) for place in places):
        return None
    if not places:
        return NONE_ALLOWED
    return f"is not allowed; allowed are {', '.join(map(str, places))} and what is below"


def server_of(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address."""
    place = _place(urlsplit(url))
    return place.scheme, place.host, place.port


def _place(parts: SplitResult) -> AllowedPlace:
    port = parts.port or _PORTS[parts.scheme]
    return AllowedPlace(parts.scheme, (parts.hostname or "").lower(), port, parts.path or "/")

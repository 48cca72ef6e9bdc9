"""Protection against browsers: a foreign page must not reach us through its reader's browser.

A page can point its own name to our address (DNS rebinding), so a name in `Host` must be one of
ours. An address cannot be rebound. Under TLS, the certificate proves the name.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import HttpVersion10, web

from muster.daemon.listen_address import is_address
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.request_parsing import shown

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]{1,253})(?::[0-9]{1,5})?")
_SAME: Final = ("same-origin", "none")


class Origins:
    """Host names that requests may use besides addresses and `localhost`; None allows any."""

    def __init__(self, names: Iterable[str] | None) -> None:
        self._names = None if names is None else {"localhost", *map(_canonical, names)}

    def check(self, request: web.Request) -> None:
        """Raise ApiError (400, 403, 421) for a request that a foreign page may have sent."""
        host = request.headers.get("Host")
        target = request.raw_path
        if host is None and request.version != HttpVersion10:
            raise ApiError(400, "no_host", "a request must name its host", "send `Host`")
        if not target.startswith("/") and target != "*":
            # The host of an absolute target replaces that of the header (RFC 9112, 3.2.2).
            host = _authority(target)
            self._check_host(host, "the request target's host")
        elif host is not None:
            self._check_host(host, "the Host header")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"{request.scheme}://{host}".lower():
            raise ApiError(
                403,
                "cross_origin",
                f"a page of {shown(origin)} may not send requests here",
                "call the API from a program, not from a page",
            )
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None and site not in _SAME:
            raise ApiError(
                403,
                "cross_origin",
                "a page of another site may not send requests here",
                "call the API from a program, not from a page",
            )

    def _check_host(self, host: str, where: str) -> None:
        found = _HOST.fullmatch(host)
        if found is None:
            raise ApiError(400, "bad_host", f"{where} {shown(host)} is not a host")
        name = _canonical(found["name"])
        if self._names is None or name in self._names or is_address(name.strip("[]")):
            return
        raise ApiError(
            421,
            "unknown_host",
            f"this coordinator is not known as {shown(name)}",
            "use its address, or add the name to listen.names in its configuration",
        )


def _authority(target: str) -> str:
    try:
        return urlsplit(target).netloc
    except ValueError:
        return ""


def _canonical(name: str) -> str:
    return name.lower().rstrip(".")

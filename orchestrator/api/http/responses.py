"""JSON responses."""

from collections.abc import Mapping

import msgspec
from aiohttp import web


def reply(
    body: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )

"""JSON responses."""

from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from orchestrator.api.http.access import TOKEN
from orchestrator.shell.bulk_reads import BulkReads


def reply(
    body: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )


async def reply_from_thread(
    views: BulkReads,
    request: web.Request,
    make: Callable[[], msgspec.Struct],
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Respond with a body that is made and encoded in a thread, when it is the user's turn.

    For bodies whose size a user chooses: a job may have half a megabyte of commands, and a thousand
    requests for it may arrive at once. `make` must not read the state, which changes meanwhile.
    """
    body = await views.slice(request[TOKEN].user, lambda: msgspec.json.encode(make()))
    return web.Response(body=body, content_type="application/json", headers=headers)

"""A resolver for aiohttp that looks names up in threads of its own.

If no name server answers, the system's resolver blocks for a minute and cannot be interrupted. In
the loop's shared executor, a few such lookups would block all disk work, and a daemon could not end
before the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Final, NamedTuple

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AS_NUMBERS: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class _Asked(NamedTuple):
    host: str
    port: int
    family: socket.AddressFamily


class ThreadedResolver(AbstractResolver):
    """The machine's own resolver. Concurrent requests for the same name share one lookup."""

    def __init__(self) -> None:
        self._running: dict[_Asked, asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of a name. Raises OSError."""
        asked = _Asked(host, port, family)
        # If a caller gives up, the lookup goes on for the next caller with the same name.
        return await asyncio.shield(self._running.get(asked) or self._begin(asked))

    async def close(self) -> None:
        """Do nothing: running lookups end by themselves."""

    def _begin(self, asked: _Asked) -> asyncio.Future[list[ResolveResult]]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def finish(addresses: list[ResolveResult], error: OSError | None) -> None:
            del self._running[asked]
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)
                found.exception()  # Mark the error as retrieved, because no caller may be left.

        def look() -> None:
            addresses: list[ResolveResult] = []
            failure = None
            try:
                addresses = _addresses(asked)
            except OSError as error:
                failure = error
            except UnicodeError:  # A label is too long.
                failure = socket.gaierror(socket.EAI_NONAME, "no such name can be")
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(finish, addresses, failure)

        threading.Thread(target=look, name="lookup", daemon=True).start()
        self._running[asked] = found
        return found


def _addresses(asked: _Asked) -> list[ResolveResult]:
    return [
        ResolveResult(
            hostname=asked.host,
            # Includes the interface if an address needs one.
            host=socket.getnameinfo(address, _AS_NUMBERS)[0],
            port=asked.port,
            family=family,
            proto=protocol,
            flags=_NUMERIC,
        )
        for family, _, protocol, _, address in socket.getaddrinfo(
            asked.host,
            asked.port,
            family=asked.family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
    ]

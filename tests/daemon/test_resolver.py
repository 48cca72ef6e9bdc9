"""Names looked up for aiohttp, also where no name server answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from muster.daemon.resolver import ThreadedResolver

DEADLINE_S = 180.0


class SilentServer:
    """A name server that answers nobody, until it does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.gave_up = threading.Event()
        self._resolve = socket.getaddrinfo

    def getaddrinfo(self, host: str, *rest: Any, **more: Any) -> list[Any]:
        self.asked.append(host)
        if not self.answers.wait(DEADLINE_S):
            self.gave_up.set()
        return self._resolve("127.0.0.1", *rest, **more)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    server = SilentServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.answers.set()


def test_a_name_that_nobody_answers_for_keeps_no_process_from_its_end(silent: SilentServer) -> None:
    async def main() -> None:
        lookup = ThreadedResolver()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await lookup.resolve("coordinator", 7077)
        assert await asyncio.to_thread(lambda: "free") == "free"

    # It returns once the threads have ended that the loop shares.
    asyncio.run(main())
    assert not silent.gave_up.is_set()
    assert silent.asked == ["coordinator"], "each further one would hold a thread more"


def test_a_running_lookup_serves_the_next_caller(silent: SilentServer) -> None:
    async def main() -> None:
        lookup = ThreadedResolver()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await lookup.resolve("coordinator", 7077)
        silent.answers.set()
        found = await asyncio.gather(*(lookup.resolve("coordinator", 7077) for _ in range(3)))
        assert {(one["host"], one["port"]) for (one,) in found} == {("127.0.0.1", 7077)}

    asyncio.run(main())
    assert silent.asked == ["coordinator"]


@pytest.mark.parametrize("name", ["no.such.name.invalid", "x" * 64, ""])
def test_an_invalid_name_is_a_network_error(name: str) -> None:
    async def main() -> None:
        lookup = ThreadedResolver()
        for _ in range(2):  # asked anew each time
            with pytest.raises(OSError):
                await lookup.resolve(name, 0 if name else 1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "family", "address"),
    [("localhost", socket.AF_INET, "127.0.0.1"), ("127.0.0.1", socket.AF_UNSPEC, "127.0.0.1")],
)
def test_all_that_a_connection_needs(name: str, family: socket.AddressFamily, address: str) -> None:
    found = asyncio.run(ThreadedResolver().resolve(name, 7077, family))
    assert (found[0]["hostname"], found[0]["host"], found[0]["port"]) == (name, address, 7077)
    assert found[0]["family"] == socket.AF_INET

"""Both clients behind one face, so that one test shows what holds for either."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from muster.client import AsyncClient, Client

MakeClient: TypeAlias = Callable[..., Client]


class Awaited:
    """An AsyncClient whose calls are waited for: it looks like a Client."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            return self._runner.run(made) if inspect.iscoroutine(made) else self._each(made)

        return call

    def _each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self._runner.run(following())
            if not more:
                return
            yield item


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes a client, given what either takes: (url, token, ca, on_trouble=...)."""
    if request.param == "sync":
        yield Client
        return
    made: list[AsyncClient] = []
    with asyncio.Runner() as runner:

        def make_async(
            url: str | None = None, token: str | None = None, ca: Path | None = None, **more: Any
        ) -> Client:
            made.append(AsyncClient(url, token, ca, **more))
            return cast(Client, Awaited(made[-1], runner))

        yield make_async
        for client in made:
            runner.run(client.close())

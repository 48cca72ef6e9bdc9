"""Turns of webhook servers: a pause after each request that hung, twice as long each time."""

import asyncio

import pytest

from orchestrator.webhooks.turns import PAUSE_MAX_S, SLOW_S, RequestSlots, Server, UnusedTurnError

NAME = ("https", "hooks.example.com", 443)


def test_pauses_grow_until_the_server_answers() -> None:
    server = Server()
    pauses = []
    for _ in range(40):
        server.hung(1000.0, 1.0)
        pauses.append(server.not_before - 1000.0)
    assert pauses[:8] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    assert set(pauses[8:]) == {PAUSE_MAX_S}
    assert server.is_slow
    server.answered(SLOW_S)
    assert (server.not_before, server.is_slow) == (0.0, True), "it answers, and slowly"
    server.answered(0.1)
    assert not server.is_slow
    server.hung(1000.0, 1.0)
    assert server.not_before == 1002.0


@pytest.mark.parametrize(
    ("error", "hangs", "slow"),
    [(TimeoutError(), 2, True), (UnusedTurnError(), 1, True), (OSError(), 0, False)],
)
def test_only_a_request_without_an_answer_is_a_hang(
    error: Exception, hangs: int, slow: bool
) -> None:
    async def main() -> None:
        turns = RequestSlots(0.0)
        server = turns.server(NAME)
        server.hung(0.0, 0.0)
        with pytest.raises(type(error)):
            async with turns.turn(NAME):
                raise error
        assert (server.hangs, server.is_slow) == (hangs, slow)

    asyncio.run(main())

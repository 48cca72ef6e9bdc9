"""Pauses of an agent before it redials, spread because all agents lose their coordinator at
once."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import random
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tenacity import AsyncRetrying, Future, RetryCallState

from agent.link import dialer as dial
from agent.link.dialer import ConnectionLostError, Dialer, _pause
from examples.local_cluster import free_port
from orchestrator.api.http.tokens import waiting_pause_s

AGENTS = 1000
DEADLINE_S = 180.0


def pause(attempt: int, after_s: float = 60.0, **how: Any) -> float:
    """The pause after so many dials that were of no use, the first of them so long ago."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = attempt
    error = ConnectionLostError("gone", **how)
    state.outcome = Future.construct(attempt, error, has_exception=True)
    state.outcome_timestamp = state.start_time + after_s
    return _pause(state)


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    ("attempt", "longest"), [(1, 0.1), (2, 0.2), (4, 0.8), (6, 3.2), (7, 5.0), (500, 5.0)]
)
def test_a_thousand_agents_come_back_spread_over_a_time_that_grows(
    attempt: int, longest: float
) -> None:
    random.seed(attempt)
    pauses = [pause(attempt) for _ in range(AGENTS)]
    assert 0 <= min(pauses) <= max(pauses) <= longest
    tenths = Counter(int(10 * one / longest) for one in pauses)
    assert all(AGENTS / 20 < tenths[tenth] < AGENTS / 5 for tenth in range(10)), tenths


def test_a_refused_agent_retries_slowly_and_spread_out() -> None:
    random.seed(1)
    pauses = [pause(attempt, refused=True) for attempt in range(1, AGENTS)]
    assert 30 <= min(pauses) <= max(pauses) <= 35
    assert max(pauses) - min(pauses) > 4


@pytest.mark.parametrize("waiting", [1, 500, 800])
def test_nodes_that_wait_for_an_operator_dial_within_10_s_and_spread_out(waiting: int) -> None:
    random.seed(waiting)
    asked_s = waiting_pause_s(waiting)
    pauses = [pause(attempt, refused=True, waits_s=asked_s) for attempt in range(1, AGENTS)]
    # The rest of the 10 s is for the dial itself, and 90 dials a second are few.
    assert 5 <= min(pauses) <= max(pauses) <= 8 * max(1, waiting / 500)
    assert waiting / (sum(pauses) / len(pauses)) < 90
    tenths = Counter(int(10 * (one - asked_s) / (0.6 * asked_s)) for one in pauses)
    assert all(AGENTS / 20 < tenths[tenth] < AGENTS / 5 for tenth in range(10)), tenths


@pytest.mark.parametrize(("after_s", "longest"), [(0.5, 0.4), (4.9, 0.4), (5.0, 5.0)])
def test_a_closed_port_is_retried_quickly_for_a_while(after_s: float, longest: float) -> None:
    """A coordinator that is restarted is to have its agents back within a second."""
    random.seed(1)
    pauses = [pause(8, after_s, absent=True) for _ in range(AGENTS)]
    assert 0.9 * longest < max(pauses) <= longest


def test_a_port_at_which_nobody_listens_is_distinguished_from_a_machine_that_does_not_answer(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("t\n")

    async def dial() -> ConnectionLostError:
        async with Dialer(f"http://127.0.0.1:{free_port()}", token, None) as dialer:
            with pytest.raises(ConnectionLostError) as lost:
                await dialer.dial("/v1/agent", 1024)
        return lost.value

    error = asyncio.run(dial())
    assert error.absent
    assert str(error).endswith(" cannot be reached: nothing listens there")


def test_a_network_without_a_way_is_reported_in_the_words_of_the_system(tmp_path: Path) -> None:
    """And not with what the library holds: its TLS context, and the call that failed."""
    token = tmp_path / "token"
    token.write_text("t\n")

    async def dial() -> str:
        # A broadcast address: no connection is made to it.
        async with Dialer("https://127.255.255.255:7077", token, None) as dialer:
            with pytest.raises(ConnectionLostError) as lost:
                await dialer.dial("/v1/agent", 1024)
        return str(lost.value)

    said = asyncio.run(dial()).partition(" cannot be reached: ")[2]
    assert said in {os.strerror(code) for code in (errno.ENETUNREACH, errno.EACCES)}


async def test_an_agent_ends_at_once_also_where_no_name_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("t\n")
    end, ended = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        end.wait(DEADLINE_S)
        ended.set()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(dial, "_HANDSHAKE_S", 0.05)
    async with Dialer("https://coordinator:7077", token, None) as dialer:
        with pytest.raises(ConnectionLostError, match=r"did not answer within 0\.05 s"):
            await dialer.dial("/v1/agent", 1024)
    assert not ended.is_set(), "it waited for the lookup"
    end.set()


async def test_an_answer_is_not_unpacked(tmp_path: Path) -> None:
    packed = gzip.compress(b"\0" * 1_000_000)
    asked: list[str | None] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.headers.get("Accept-Encoding"))
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    token = tmp_path / "token"
    token.write_text("t\n")
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with Dialer(f"http://127.0.0.1:{port}", token, None) as dialer:
            assert await dialer.request("GET", "/code", None, {}, len(packed)) == packed
    finally:
        await runner.cleanup()
    assert asked == ["identity"]

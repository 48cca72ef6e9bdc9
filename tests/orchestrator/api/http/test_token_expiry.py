"""Tokens that end: by their date, judged by the coordinator's clock, or by being taken out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.daemon.errors import ConfigError
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.tokens import TokenStore
from tests.descriptors import descriptors_left
from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.process import CoordinatorProcess, token_file
from tests.orchestrator.user import user_of

PAST = "2020-01-01T00:00:00Z"
FUTURE = "2120-01-01T02:00:00+02:00"


class HandClock:
    """Wall and monotonic time as a test wants them."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.mono = 0.0

    def now(self) -> Instant:
        self.mono += 10.0
        return Instant(self.mono, self.wall)


def edit(path: Path, class_: TokenClass, expires: str | None) -> None:
    """Give a token a date, or (None) take it out, as an operator does."""
    records = json.loads(path.read_text())["tokens"]
    changed = [r | {"expires": expires} if r["class"] == class_.value else r for r in records]
    kept = [r for r in changed if expires is not None or r["class"] != class_.value]
    new = path.with_name("tokens.new")
    new.write_text(json.dumps({"tokens": kept}))
    new.chmod(0o600)
    new.replace(path)


@pytest.mark.parametrize(
    ("expires", "wall", "good"),
    [
        ("", 0.0, True),
        ("2026-06-01T12:00:00Z", 1780315199.0, True),
        ("2026-06-01T12:00:00Z", 1780315200.0, False),
        ("2026-06-01T14:00:00+02:00", 1780315199.0, True),
        ("2026-06-01T14:00:00+02:00", 1780315201.0, False),
        # A clock that is a day slow lets a token live a day longer, and no more than that.
        ("2026-06-01T12:00:00Z", 1780315200.0 - 86400, True),
        ("2026-06-01T12:00:00Z", 1780315200.0 + 86400, False),
    ],
)
def test_a_date_is_judged_by_the_wall_clock(
    tmp_path: Path, expires: str, wall: float, good: bool
) -> None:
    tokens = token_file(tmp_path / "tokens")
    edit(tmp_path / "tokens", TokenClass.ADMIN, expires)
    store = TokenStore(tmp_path / "tokens", HandClock(wall))
    record = store.find(tokens[TokenClass.ADMIN])
    assert record is not None
    assert (store.why_not(record) == "") is good
    assert good or expires in store.why_not(record)


@pytest.mark.parametrize("expires", ["soon", "2026-06-01T12:00:00", "2026-13-01", "1780315200"])
def test_a_date_that_cannot_be_read_is_reported(tmp_path: Path, expires: str) -> None:
    token_file(tmp_path / "tokens")
    edit(tmp_path / "tokens", TokenClass.ADMIN, expires)
    with pytest.raises(ConfigError, match=r"token admin1: expires: .* 2027-01-31T12:00:00Z"):
        TokenStore(tmp_path / "tokens", HandClock(0.0))


def test_a_change_that_could_not_be_read_is_read_once_it_can_be(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens")
    store = TokenStore(tmp_path / "tokens", HandClock(0.0))
    record = store.find(tokens[TokenClass.ADMIN])
    assert record is not None
    edit(tmp_path / "tokens", TokenClass.ADMIN, None)
    # As with a file that is another user's until somebody gives it to the coordinator.
    with descriptors_left(0):
        assert store.why_not(record) == ""
    assert "revoked" in store.why_not(record)


def test_a_token_ends_for_requests_streams_and_agents(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"

    async def main(process: CoordinatorProcess) -> None:
        async with user_of(process) as user, connect(process, "n1") as agent:
            await agent.hello()
            job = await user.submit()
            edit(tokens, TokenClass.JOIN, PAST)
            edit(tokens, TokenClass.ADMIN, FUTURE)
            stream = await user.http.get(f"/v1/jobs/{job}/logs?follow=1")
            assert stream.status == 200
            edit(tokens, TokenClass.ADMIN, PAST)
            # A stream that is cut has no last line: nobody takes it for the end of the job.
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(aiohttp.ClientError):
                    await stream.read()
            async with user.http.get(f"/v1/jobs/{job}") as answer:
                problem = json.loads(await answer.text())
                assert (answer.status, problem["code"]) == (401, "unauthorized")
                assert "has expired (2020-01-01T00:00:00Z)" in problem["detail"]
            # The agent's connection lives on: its jobs must not end because of a date.
            await agent.say(Heartbeat(1.0))
            while await agent.hear() != HeartbeatAck(1.0):
                pass
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with connect(process, "n2"):
                    pass
            assert caught.value.status == 401
            # Revoked is another thing.
            edit(tokens, TokenClass.JOIN, None)
            async with asyncio.timeout(DEADLINE_S):
                message = await agent.socket.receive()
                while message.type is aiohttp.WSMsgType.TEXT:
                    message = await agent.socket.receive()
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE), message

    with CoordinatorProcess(tmp_path, heartbeat_s=1, lease_s=10).start() as process:
        asyncio.run(main(process))
    cut: list[dict[str, Any]] = process.events("stream_cut")
    assert [line["path"] for line in cut] == ["/v1/jobs/1/logs", "/v1/agent"]
    assert "revoked" in cut[1]["why"]
    (event,) = process.events("join_token_expired")
    assert "new token_file" in event["why"]

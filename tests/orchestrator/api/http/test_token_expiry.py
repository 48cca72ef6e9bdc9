"""Tokens that end: by their date, judged by the coordinator's clock, by being revoked, or with
their user."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass, digest, make
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.stream_revocation import StreamRevocation
from orchestrator.api.http.tokens import TokenStore
from orchestrator.core.model.people import Enrolment, Joined, KnownToken, KnownUser, NodeKey, People
from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.late_clock import AHEAD
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

SECRET = "s" * 43
DAY_S = 86400.0


class HandClock:
    """Wall and monotonic time as a test wants them."""

    def __init__(self, wall: float) -> None:
        self.wall = wall

    def now(self) -> Instant:
        return Instant(0.0, self.wall)


def people(role: Role = Role.USER, limit: Role | None = None, **fields: Any) -> People:
    token = KnownToken("bob1", TokenClass.USER, digest(SECRET), "bob", role=limit, **fields)
    return People({"bob": KnownUser("bob", role, ("lab",))}, {"bob1": token}, "imported")


def text(name: str = "bob1", class_: TokenClass = TokenClass.USER, secret: str = SECRET) -> str:
    return make(class_, name, secret)


def test_only_the_whole_token_is_found() -> None:
    store = TokenStore(people(), HandClock(0.0))
    found = store.find(text())
    assert found is not None
    assert (found.user, store.role(found)) == ("bob", Role.USER)
    assert store.teams_of("bob") == {"lab"}
    for other in (text("bob2"), text(secret="t" * 43), text(class_=TokenClass.JOIN), "", "x"):
        assert store.find(other) is None, other


@pytest.mark.parametrize(
    ("expires", "wall", "good"),
    [
        (None, 0.0, True),
        (1000.0, 999.0, True),
        (1000.0, 1000.0, False),
        # A clock that is a day slow lets a token live a day longer, and no more than that.
        (1000.0 + DAY_S, 1000.0, True),
    ],
)
def test_a_date_is_judged_by_the_wall_clock(expires: float | None, wall: float, good: bool) -> None:
    store = TokenStore(people(expires=expires), HandClock(wall))
    found = store.find(text())
    assert found is not None
    assert (store.why_not(found) == "") is good
    assert good or "has expired (1970-01-01T00:16:40Z)" in store.why_not(found)


def test_a_token_ends_with_its_user_and_by_being_revoked() -> None:
    known = people()
    store = TokenStore(known, HandClock(0.0))
    found = store.find(text())
    assert found is not None
    known.users["bob"] = KnownUser("bob", Role.USER, disabled=True)
    assert store.why_not(found) == "the user bob is disabled"
    known.revoke("bob1")
    assert "revoked" in store.why_not(found)
    assert store.find(text()) == found
    assert store.find(text(secret="t" * 43)) is None
    assert store.owner("bob1") is None


@pytest.mark.parametrize(
    ("role", "limit", "expected"),
    [
        (Role.ADMIN, Role.VIEWER, Role.VIEWER),
        (Role.USER, Role.ADMIN, Role.USER),
        (Role.OPERATOR, None, Role.OPERATOR),
    ],
)
def test_a_token_gives_no_more_than_its_user_has(
    role: Role, limit: Role | None, expected: Role
) -> None:
    store = TokenStore(people(role, limit), HandClock(0.0))
    found = store.find(text())
    assert found is not None
    assert store.role(found) is expected


def test_a_use_is_recorded_once_a_day() -> None:
    asked: list[str] = []
    known, clock = people(), HandClock(10 * DAY_S)
    store = TokenStore(known, clock, asked.append)
    for _ in range(3):
        store.used(known.tokens["bob1"])
        clock.wall += 1.0
    assert asked == ["bob1"]
    assert store.last_use(known.tokens["bob1"]) == clock.wall - 1.0
    known.tokens["bob1"] = KnownToken(
        "bob1", TokenClass.USER, digest(SECRET), "bob", used=10 * DAY_S
    )
    clock.wall += 7200.0
    store.used(known.tokens["bob1"])
    assert asked == ["bob1"]
    clock.wall += DAY_S
    store.used(known.tokens["bob1"])
    assert asked == ["bob1", "bob1"]


async def test_a_connection_is_closed_when_the_nodes_certificate_ends() -> None:
    known, clock = Enrolment(), HandClock(940.0)
    known.put(NodeName("gpu-01"), Joined(NodeKey("f" * 64, "k" * 64, expires=1000.0)))
    store = TokenStore(people(), clock, enrolment=known)
    shown = store.of_node("f" * 64)
    assert shown is not None
    transport = Mock()
    request = make_mocked_request("GET", "/v1/agent/control", transport=transport)
    request[TOKEN] = shown
    ended = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        for clock.wall, closed in ((940.0, 0), (999.0, 0), (1000.0, 1), (1001.0, 1)):
            await streams.look()
            assert transport.close.call_count == closed, clock.wall
        ended.set()
        return web.Response()

    streams = StreamRevocation(store, Mock())
    await streams.middleware(request, handler)
    assert ended.is_set()
    transport.close.assert_called_once_with()


async def made(admin: User, **fields: Any) -> str:
    async with admin.http.post("/v1/tokens", json=fields) as answer:
        body = await answer.json()
        assert answer.status == 201, body
        return str(body["text"])


def test_a_token_ends_for_requests_streams_and_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    monkeypatch.setenv(AHEAD, str(ahead))

    async def main(process: CoordinatorProcess) -> None:
        async with user_of(process) as admin:
            join = await made(admin, join=True, expires_s=3600)
            own = await made(admin, expires_s=3600)
            process.join = join
            async with (
                connect(process, "n1") as agent,
                aiohttp.ClientSession(process.url, headers=process.headers(own)) as http,
            ):
                await agent.hello()
                job = await admin.submit()
                stream = await http.get(f"/v1/jobs/{job}/logs?follow=1")
                assert stream.status == 200
                ahead.write_text("7200")
                # A stream that is cut has no last line: nobody takes it for the end of the job.
                async with asyncio.timeout(DEADLINE_S):
                    with pytest.raises(aiohttp.ClientError):
                        await stream.read()
                async with http.get(f"/v1/jobs/{job}") as answer:
                    problem = json.loads(await answer.text())
                    assert (answer.status, problem["code"]) == (401, "unauthorized")
                    assert "has expired (20" in problem["detail"]
                # The agent's connection lives on: its jobs must not end because of a date.
                await agent.say(Heartbeat(1.0))
                while await agent.hear() != HeartbeatAck(1.0):
                    pass
                with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                    async with connect(process, "n2"):
                        pass
                assert caught.value.status == 401
                # Revoked is another thing.
                name = join.split("_")[2]
                async with admin.http.post(f"/v1/tokens/{name}/revoke") as answer:
                    assert answer.status == 200, await answer.text()
                async with asyncio.timeout(DEADLINE_S):
                    message = await agent.socket.receive()
                    while message.type is aiohttp.WSMsgType.TEXT:
                        message = await agent.socket.receive()
                assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE), message

    module = "tests.orchestrator.late_clock"
    with CoordinatorProcess(tmp_path, module=module, heartbeat_s=20, lease_s=60).start() as process:
        asyncio.run(main(process))
        cut = process.logged("stream_cut", 2)
        (event,) = process.logged("join_token_expired")
    assert [line["path"] for line in cut] == ["/v1/jobs/1/logs", "/v1/agent"]
    assert "revoked" in cut[1]["why"]
    assert "new token_file" in event["why"]

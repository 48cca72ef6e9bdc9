"""Events as a list and as a stream: in order, resumed over restarts without loss or double."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.client import ApiError, Client
from orchestrator.api import events
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess, add_token
from tests.orchestrator.user import User, user_of


async def next_event(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """The fields of the next event; a heartbeat has the field ""."""
    fields: dict[str, str] = {}
    while True:
        line = (await answer.content.readline()).decode()
        if line == "\n" and fields:
            return fields
        if not line:
            return {"event": "cut"}
        name, _, value = line.rstrip("\n").partition(":")
        fields[name] = value.strip()


async def known_node(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "n1") as agent:
        await agent.hello()


def follow(user: User, path: str, last: str = "") -> Any:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    return user.http.get(path, headers=headers)


async def test_the_events_of_a_job_come_and_end_with_it(coordinator: CoordinatorProcess) -> None:
    await known_node(coordinator)
    async with user_of(coordinator) as user, asyncio.timeout(180):
        job = await user.submit()
        async with follow(user, f"/v1/jobs/{job}/events") as answer:
            assert answer.content_type == "text/event-stream"
            assert await next_event(answer) == {"retry": "1000"}
            first = await next_event(answer)
            assert first["event"] == "JobSubmitted"
            await user.cancel(job)
            rest = [await next_event(answer) for _ in range(3)]
            assert [event["event"] for event in rest] == ["CancelRequested", "JobEnded", "end"]
            assert json.loads(rest[-1]["data"]) == {"final": True, "reason": ""}
            assert await answer.read() == b""
        listed = (await user.get(f"/v1/jobs/{job}/events"))["events"]
        streamed = [json.loads(event["data"]) for event in [first, *rest[:-1]]]
        assert streamed == listed
        assert [event["id"] for event in [first, *rest[:-1]]] == [e["id"] for e in listed]
        async with follow(user, f"/v1/jobs/{job}/events", first["id"]) as answer:
            await next_event(answer)
            assert (await next_event(answer))["id"] == listed[1]["id"]
        async with follow(user, f"/v1/jobs/{job}/events", rest[-2]["id"]) as answer:
            assert answer.status == 204, "a browser comes no more"
        every = (await user.get(f"/v1/events?after={listed[0]['seq'] - 1}"))["events"]
        assert every[0] == listed[0]


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 30])
def test_a_last_event_id_that_is_none(coordinator: CoordinatorProcess, given: str) -> None:
    async def main() -> None:
        async with user_of(coordinator) as user, follow(user, "/v1/events", given) as answer:
            assert answer.status == 400
            assert (await answer.json())["code"] == "bad_last_event_id"

    asyncio.run(main())


async def test_an_event_that_has_not_been_is_refused(coordinator: CoordinatorProcess) -> None:
    """A backup was restored: who waited for it would miss all that comes before it."""
    await known_node(coordinator)
    async with user_of(coordinator) as user, asyncio.timeout(180):
        newest = (await user.get("/v1/events"))["events"][-1]["seq"]
        job = await user.submit()
        for path in ("/v1/events", f"/v1/jobs/{job}/events"):
            async with follow(user, path, str(newest)) as answer:
                assert answer.status == 200
            async with follow(user, path, str(newest + 1000)) as answer:
                assert answer.status == 400
                problem = await answer.json()
                assert problem["code"] == "bad_last_event_id"
                assert "from the start" in problem["hint"]
            async with follow(user, f"{path}?after={newest + 1000}") as answer:
                assert answer.status == 400
                assert (await answer.json())["problems"][0]["field"] == "after"


async def test_an_event_of_another_history_is_refused(coordinator: CoordinatorProcess) -> None:
    """A backup was restored, and more has happened since: its place is another event's now."""
    await known_node(coordinator)
    async with user_of(coordinator) as user, asyncio.timeout(180):
        first = (await user.get("/v1/events"))["events"][0]
        seq, mark = first["id"].split("-")
        assert seq == str(first["seq"])
        other = f"{seq}-{int(mark, 16) + 1:x}"
        async with follow(user, "/v1/events", other) as answer:
            assert (await answer.json())["code"] == "bad_last_event_id"
        for query in (f"after={other}", f"after={other}&follow=1"):
            async with follow(user, f"/v1/events?{query}") as answer:
                problem = await answer.json()
                assert problem["problems"][0]["field"] == "after"
                assert "was a backup of the coordinator restored?" in problem["detail"]
        client = Client(coordinator.url, coordinator.admin)
        with pytest.raises(ApiError, match="another event"):
            await asyncio.to_thread(lambda: next(client.follow_events(after=other)))


def test_nothing_is_lost_or_doubled_when_the_coordinator_dies(tmp_path: Path) -> None:
    """The client's own iterator, over one kill and one orderly restart, while jobs come and go."""

    async def some_jobs() -> None:
        async with user_of(coordinator) as user:
            for _ in range(5):
                await user.cancel(await user.submit())

    seen: list[int] = []
    enough = threading.Event()

    def watch() -> None:
        for event in Client(coordinator.url, coordinator.admin).follow_events():
            seen.append(event.seq)
            if event.kind == "JobEnded" and event.job == 15:
                break
        enough.set()

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(known_node(coordinator))
        threading.Thread(target=watch, daemon=True).start()
        asyncio.run(some_jobs())
        coordinator.kill()
        coordinator.start()
        asyncio.run(some_jobs())
        assert coordinator.terminate() == 0
        coordinator.start()
        asyncio.run(some_jobs())
        assert enough.wait(300), seen
    assert seen == list(range(1, len(seen) + 1))


def test_a_reader_whose_token_is_revoked_gets_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        await known_node(coordinator)
        token = add_token(coordinator, "ann")
        async with (
            asyncio.timeout(180),
            aiohttp.ClientSession(coordinator.url, headers=coordinator.headers(token)) as http,
            follow(user := User(http), "/v1/events") as answer,
        ):
            while (await next_event(answer)).get("event") != "NodeRegistered":
                pass
            async with user_of(coordinator) as admin:
                revoke = f"/v1/tokens/{token.split('_')[2]}/revoke"
                async with admin.http.post(revoke) as revoked:
                    assert revoked.status == 200
            status = 200
            while status == 200:
                async with user.http.get("/v1/nodes") as nodes:
                    status = nodes.status
            async with connect(coordinator, "n2") as agent:
                await agent.hello()
            # Either side may notice first: the next push, or the check of all open requests.
            try:
                rest = await answer.text()
            except aiohttp.ClientPayloadError:
                rest = ""
            assert "n2" not in rest

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main())


async def test_a_reader_that_sleeps_holds_up_nobody(coordinator: CoordinatorProcess) -> None:
    """It is sent a page at a time, and reads what it missed when it wakes."""
    await known_node(coordinator)
    async with (
        asyncio.timeout(180),
        user_of(coordinator) as user,
        user_of(coordinator) as sleeper,
        follow(sleeper, "/v1/events") as answer,
    ):
        jobs = [await user.submit(env={"LONG": "x" * 100_000}) for _ in range(60)]
        for job in jobs:
            await user.cancel(job)
        kinds: list[str] = []
        while kinds.count("JobEnded") < len(jobs):
            event = await next_event(answer)
            if "event" in event and json.loads(event["data"])["job"] in jobs:
                kinds.append(event["event"])
        assert kinds.count("JobSubmitted") == len(jobs)


def test_the_heartbeat_is_shorter_than_what_takes_a_connection_for_dead() -> None:
    assert events.HEARTBEAT_S < 30

"""Webhooks of jobs, sent by a real coordinator: signed, at least once, and only those allowed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.daemon.errors import ConfigError
from orchestrator.config import load, webhook_secret
from tests.orchestrator.fake_agent import FakeAgent, connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, User, user_of
from tests.orchestrator.webhooks.receiver import Receiver, listening

SECRET = "a secret of more than sixteen bytes"
Main = Callable[[User, FakeAgent], Awaitable[None]]


@pytest.fixture(scope="module")
def _receiver() -> Iterator[Receiver]:
    with listening(Receiver()) as made:
        yield made


def started(folder: Path, receiver: Receiver) -> CoordinatorProcess:
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    webhooks = {"allow": [f"{receiver.url}/team"], "secret_file": str(file)}
    made = CoordinatorProcess(folder, webhooks=webhooks, heartbeat_s=20, lease_s=60)
    return made.start()


@pytest.fixture(scope="module")
def coordinator(
    tmp_path_factory: pytest.TempPathFactory, _receiver: Receiver
) -> Iterator[CoordinatorProcess]:
    with started(tmp_path_factory.mktemp("coordinator"), _receiver) as made:
        yield made


@pytest.fixture
def receiver(_receiver: Receiver) -> Receiver:
    """Return the shared receiver, emptied; every test waits for all its messages."""
    _receiver.got.clear()
    return _receiver


def scene(coordinator: CoordinatorProcess, main: Main) -> None:
    async def run() -> None:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            await main(user, agent)

    asyncio.run(run())


async def run_to_the_end(user: User, agent: FakeAgent, url: str) -> int:
    job = await user.submit(notify=[url])
    task = await agent.prepare()
    await agent.arrange(task)
    await agent.finish(task)
    assert (await user.ended(job))[0] == "SUCCEEDED"
    return job


async def queued_webhooks(user: User, job: int, wanted: Callable[[list[Any]], bool]) -> Any:
    """Return the job once its undelivered messages are as wanted."""
    async with asyncio.timeout(180):
        while True:
            view = await user.get(f"/v1/jobs/{job}")
            if wanted(view["pending_webhooks"]):
                return view
            await asyncio.sleep(0.05)


def test_it_is_notified_of_the_start_and_the_end_signed(
    coordinator: CoordinatorProcess, receiver: Receiver
) -> None:
    async def main(user: User, agent: FakeAgent) -> None:
        job = await run_to_the_end(user, agent, f"{receiver.url}/team/x")
        first, last = await asyncio.to_thread(receiver.await_deliveries, 2)
        assert (first.content["event"], last.content["event"]) == ("started", "ended")
        assert last.content["job"]["id"] == job
        assert last.content["job"]["state"] == "SUCCEEDED"
        assert last.content["cause"]["code"] == "completed"
        assert first.content["id"] != last.content["id"]
        for one in (first, last):
            sent = one.headers["Muster-Timestamp"]
            mac = hmac.new(SECRET.encode(), f"{sent}.".encode() + one.body, hashlib.sha256)
            assert one.headers["Muster-Signature"] == f"sha256={mac.hexdigest()}"
            assert one.headers["Muster-Delivery"] == one.content["id"]
        view = await queued_webhooks(user, job, lambda found: not found)
        assert view["spec"]["notify"] == [f"{receiver.url}/***"]

    scene(coordinator, main)


def test_a_failed_message_is_sent_again_with_the_same_id(
    coordinator: CoordinatorProcess, receiver: Receiver
) -> None:
    receiver.answers += [503, 429]

    async def main(user: User, agent: FakeAgent) -> None:
        await run_to_the_end(user, agent, f"{receiver.url}/team")
        got = await asyncio.to_thread(receiver.await_deliveries, 4)
        assert [one.content["event"] for one in got] == ["started"] * 3 + ["ended"]
        assert len({one.content["id"] for one in got[:3]}) == 1

    scene(coordinator, main)


@pytest.mark.parametrize("code", [302, 404])
def test_a_webhook_that_refuses_gets_no_retry_and_that_is_shown(
    coordinator: CoordinatorProcess, receiver: Receiver, code: int
) -> None:
    receiver.answers += [code, 204]

    async def main(user: User, agent: FakeAgent) -> None:
        job = await run_to_the_end(user, agent, f"{receiver.url}/team")
        got = await asyncio.to_thread(receiver.await_deliveries, 2)
        assert [one.content["event"] for one in got] == ["started", "ended"]
        view = await queued_webhooks(user, job, lambda found: not found)
        (step,) = [step["text"] for step in view["timeline"] if "webhook" in step["text"]]
        assert f"was not notified that attempt 1 has started: it answered {code}" in step
        assert {one.path for one in got} == {"/team"}

    scene(coordinator, main)


def test_a_webhook_that_is_away_is_shown_and_notified_after_a_restart(tmp_path: Path) -> None:
    """This holds for an ended job, too: it is archived when all its messages are delivered."""
    away = Receiver()
    with listening(away):
        coordinator = started(tmp_path, away)
    with coordinator:
        _notified_after_a_restart(coordinator, away)


def _notified_after_a_restart(coordinator: CoordinatorProcess, away: Receiver) -> None:
    async def before(user: User, agent: FakeAgent) -> None:
        job = await run_to_the_end(user, agent, f"{away.url}/team")
        view = await queued_webhooks(user, job, lambda found: any(it["problem"] for it in found))
        assert [it["event"] for it in view["pending_webhooks"]] == ["started", "ended"]
        assert view["pending_webhooks"][0]["to"] == f"127.0.0.1:{away.port}"
        assert "cannot be reached" in view["pending_webhooks"][0]["problem"]

    scene(coordinator, before)
    coordinator.kill()
    with listening(away):
        coordinator.start()
        got = away.await_deliveries(2)
        assert [one.content["event"] for one in got] == ["started", "ended"]

        async def after(user: User, _: FakeAgent) -> None:
            await queued_webhooks(user, got[0].content["job"]["id"], lambda found: not found)

        scene(coordinator, after)


def test_a_webhook_that_is_not_allowed_is_refused_at_submit(
    coordinator: CoordinatorProcess, receiver: Receiver
) -> None:
    host = f"127.0.0.1:{receiver.port}"

    async def main(user: User, _: FakeAgent) -> None:
        for url in (
            f"http://{host}/teams",
            f"http://{host}/",
            f"https://{host}/team",
            "http://127.0.0.1:1/team",
            "http://169.254.169.254/latest/meta-data",
            f"http://localhost:{receiver.port}/team",
            f"http://{host}/team/../x",
            f"http://{host}/team/%2e%2e/x",
            f"http://{host}/team\\..\\x",
            f"http://{host}@10.0.0.1/team",
            f"http://a@{host}/team",
            f"http://{host}/team#x",
            "file:///etc/passwd",
        ):
            for path in ("/v1/jobs", "/v1/jobs:validate"):
                async with user.http.post(path, json={**JOB, "notify": [url]}) as answer:
                    body = await answer.json()
                    assert answer.status == 422, url
                    assert body["problems"][0]["field"] == "notify[0]"
        assert receiver.got == []

    scene(coordinator, main)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("webhooks: {allow: [https://a.example/x]}", "webhooks.secret_file is not set"),
        ("webhooks: {allow: [ftp://a.example/x]}", "webhooks.allow"),
        (
            "pools: {lab: {defaults: {notify: [https://b.example/x]}}}",
            "pools.lab.defaults.notify: https://b.example/x",
        ),
        ("webhooks: {allow: [https://a.example], secret_file: SECRET}", "others can read"),
    ],
)
def test_a_configuration_that_could_not_notify_is_refused(
    tmp_path: Path, settings: str, said: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    file = tmp_path / "coordinator.yaml"
    file.write_text(settings.replace("SECRET", str(secret)))
    with pytest.raises(ConfigError, match=re.escape(said)):
        webhook_secret(load(file=file, environ={}))


async def test_a_submit_that_was_accepted_is_answered_so_after_the_rules_have_changed(
    tmp_path: Path,
) -> None:
    """A client that repeats it over a restart would else run the job twice, under another key."""
    place = "http://127.0.0.1:9/team"
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    webhooks = {"allow": [place], "secret_file": str(secret)}
    coordinator = CoordinatorProcess(tmp_path, webhooks=webhooks)
    with coordinator.start():
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            job = await user.submit(key="k", notify=[place])
    coordinator.settings["webhooks"] = {**webhooks, "allow": ["http://127.0.0.1:9/other"]}
    with coordinator.start():
        async with user_of(coordinator) as user:
            assert await user.submit(key="k", notify=[place]) == job
            with pytest.raises(AssertionError, match="is not allowed"):
                await user.submit(key="other", notify=[place])

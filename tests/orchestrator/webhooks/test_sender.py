"""The sender of webhooks under many pending ones, and beside a server that never answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import JobId
from orchestrator.core.facts.inputs import CancelReceived, SubmitReceived
from orchestrator.core.webhooks import outbox
from orchestrator.webhooks import sender
from orchestrator.webhooks.allowlist import read_allowed, server_of
from orchestrator.webhooks.sender import GIVE_UP_S, WebhookSender, tries_for_s
from orchestrator.webhooks.turns import AT_ONCE_OF_SERVER, SLOW_AT_ONCE
from tests.orchestrator.shell.owner import SPEC, Rig, with_owner
from tests.orchestrator.webhooks.receiver import Receiver, listening

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening(Receiver()) as made:
        yield made


class Hung:
    """A server that takes requests and never answers."""

    def __init__(self) -> None:
        self.requests = 0
        self.asked = asyncio.Condition()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._take, "127.0.0.1")
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self.asked:
            self.requests += 1
            self.asked.notify_all()
        await reader.read()
        await reader.read()
        writer.close()


@asynccontextmanager
async def sending(rig: Rig, *allow: str) -> AsyncIterator[WebhookSender]:
    async with TaskOwner("test") as owner:
        allowed = read_allowed(allow)
        made = WebhookSender(rig.coordinator, owner, allowed, b"a secret", pause_s=3600)
        owner.spawn(made.run(), name="webhooks", eternal=True)
        await rig.join()
        await rig.submit()  # it has the node, so that later jobs are queued and can be cancelled
        yield made


async def ended(rig: Rig, *hooks: str) -> JobId:
    """Submit a job with these webhooks and end it."""
    spec = replace(SPEC, notify=hooks)
    done: Any = await rig.coordinator.request(lambda rid: SubmitReceived(rid, spec, "ann"))
    await rig.coordinator.request(lambda rid: CancelReceived(rid, done.job, "ann"))
    return JobId(done.job)


class Counted(dict[Any, Any]):
    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()


def test_a_commit_does_not_walk_what_was_taken_before(tmp_path: Path, receiver: Receiver) -> None:
    async def main(rig: Rig) -> None:
        async with sending(rig, NOBODY, receiver.url):
            name = await ended(rig, f"{NOBODY}/x")
            job = rig.coordinator.state.jobs[name]
            while not any(webhook.problem for webhook in job.queued_webhooks.values()):
                await rig.coordinator.next_turn()
            job.queued_webhooks = queued_webhooks = Counted(job.queued_webhooks)
            await ended(rig, f"{receiver.url}/x")
            await asyncio.to_thread(receiver.await_deliveries, 1)
            assert queued_webhooks.walks == 0

    with_owner(tmp_path, main)


def test_a_server_that_never_answers_leaves_room_for_the_others(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "REQUEST_S", 3600.0)

    async def main(rig: Rig) -> None:
        hung = Hung()
        async with hung.listening(), sending(rig, hung.url, receiver.url):
            for job in range(3):
                await ended(rig, *(f"{hung.url}/{job}/{hook}" for hook in range(8)))
            async with hung.asked:
                await hung.asked.wait_for(lambda: hung.requests >= AT_ONCE_OF_SERVER)
            await ended(rig, f"{receiver.url}/x")
            await asyncio.to_thread(receiver.await_deliveries, 1)
            assert hung.requests == AT_ONCE_OF_SERVER

    with_owner(tmp_path, main)


def test_servers_that_hang_leave_room_for_the_others(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are enough to fill all slots: each has hung before, and hangs again."""
    monkeypatch.setattr(sender, "REQUEST_S", 3600.0)

    async def main(rig: Rig) -> None:
        all_hung = [Hung() for _ in range(10)]
        async with AsyncExitStack() as held:
            for hung in all_hung:
                await held.enter_async_context(hung.listening())
            urls = [hung.url for hung in all_hung]
            made = await held.enter_async_context(sending(rig, receiver.url, *urls))
            for url in urls:
                made.turns.server(server_of(url)).is_slow = True
            for url in urls:
                await ended(rig, *(f"{url}/{hook}" for hook in range(2)))
            while sum(hung.requests for hung in all_hung) < SLOW_AT_ONCE:
                await rig.coordinator.next_turn()
            await ended(rig, f"{receiver.url}/x")
            await asyncio.to_thread(receiver.await_deliveries, 1)
            assert sum(hung.requests for hung in all_hung) == SLOW_AT_ONCE

    with_owner(tmp_path, main)


def test_dropped_messages_are_not_sent_and_logged(
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(outbox, "OF_USER_MAX", 2)
    monkeypatch.setattr(sender, "REQUEST_S", 3600.0)

    async def main(rig: Rig) -> None:
        hung = Hung()
        async with hung.listening(), sending(rig, hung.url, receiver.url) as made:
            jobs = [await ended(rig, f"{hung.url}/x") for _ in range(5)]
            async with hung.asked:
                await hung.asked.wait_for(lambda: hung.requests == 1)
            await ended(rig, f"{receiver.url}/x")
            await asyncio.to_thread(receiver.await_deliveries, 1)
            while len(rig.coordinator.state.webhook_jobs) > 1:
                await rig.coordinator.next_turn()
            assert rig.coordinator.state.webhook_jobs == {jobs[-1]}
            assert list(made._lines[f"{hung.url}/x"].waiting) == [(jobs[-1], 1, 0)]
            assert rig.coordinator.meters.webhooks_dropped == 4

    with_owner(tmp_path, main)
    said = capsys.readouterr().out
    assert said.count("webhooks_dropped") == 4
    assert "2 notices of the user's jobs waited" in said


def test_a_clock_that_jumps_ahead_does_not_end_the_tries() -> None:
    assert tries_for_s(1000.0, 1000.0) == GIVE_UP_S
    assert tries_for_s(1000.0, 1000.0 + GIVE_UP_S - 7200.0) == 7200.0
    set_from_1970 = 1.8e9
    assert tries_for_s(1000.0, set_from_1970) == 3600.0

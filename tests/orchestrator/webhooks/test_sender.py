"""The sender of webhooks under many pending ones, and beside a server that never answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import JobId
from orchestrator.core.facts.inputs import CancelReceived, SubmitReceived
from orchestrator.webhooks import sender
from orchestrator.webhooks.allowlist import read_allowed
from orchestrator.webhooks.sender import AT_ONCE_OF_SERVER, WebhookSender
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
async def sending(rig: Rig, *allow: str) -> AsyncIterator[None]:
    async with TaskOwner("test") as owner:
        allowed = read_allowed(allow)
        made = WebhookSender(rig.coordinator, owner, allowed, b"a secret", pause_s=3600)
        owner.spawn(made.run(), name="webhooks", eternal=True)
        await rig.join()
        await rig.submit()  # it has the node, so that later jobs are queued and can be cancelled
        yield


async def ended(rig: Rig, *hooks: str) -> JobId:
    """A job with these webhooks, which are told of its end."""
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
            while not any(notice.problem for notice in job.notices.values()):
                await rig.coordinator.beat()
            job.notices = notices = Counted(job.notices)
            await ended(rig, f"{receiver.url}/x")
            await asyncio.to_thread(receiver.await_deliveries, 1)
            assert notices.walks == 0

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

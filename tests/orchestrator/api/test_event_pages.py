"""Pages of events: bounded in bytes, complete over their cursors, encoded once for all streams."""

import asyncio
import json
from pathlib import Path

import pytest

from muster.protocol.ids import JobId
from orchestrator.api.event_pages import LIST_BYTES, EventPages
from orchestrator.shell.bulk_reads import BulkReads
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.shell.owner import Rig, with_owner
from tests.orchestrator.user import user_of

LARGE = {f"LONG_{number}": "x" * 120_000 for number in range(4)}


@pytest.mark.parametrize("of_one_job", [False, True], ids=["of all", "of one job"])
async def test_a_page_of_large_events_ends_early_and_skips_none(
    coordinator: CoordinatorProcess, of_one_job: bool
) -> None:
    async with (
        asyncio.timeout(180),
        connect(coordinator, "n1") as agent,
        user_of(coordinator) as user,
    ):
        await agent.hello()
        jobs = [await user.submit(env=LARGE) for _ in range(8)]
        path = f"/v1/jobs/{jobs[-1]}/events" if of_one_job else "/v1/events"
        seqs: list[int] = []
        submitted: list[int] = []
        while True:
            async with user.http.get(f"{path}?after={seqs[-1] if seqs else 0}") as answer:
                text = await answer.read()
            assert len(text) < 2 * LIST_BYTES + 100_000
            page = json.loads(text)["events"]
            if not page:
                break
            seqs += [event["seq"] for event in page]
            submitted += [e["job"] for e in page if e["kind"] == "JobSubmitted"]
        assert submitted[-1] == jobs[-1]
        if not of_one_job:
            assert seqs == list(range(1, len(seqs) + 1))
            assert submitted[-8:] == jobs
        for job in jobs:
            await user.cancel(job)


def test_all_streams_at_one_place_share_a_page_until_more_is_on_disk(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        reads = BulkReads()
        pages = EventPages(rig.coordinator, reads)
        await rig.join()
        await rig.submit()
        first, *others = await asyncio.gather(
            *(pages.following(f"user {n}", None, 0) for n in range(50))
        )
        assert first
        assert all(page is first for page in others)
        await rig.submit()
        again = await pages.following("late", None, 0)
        assert again[: len(first)] == first
        assert [line.seq for line in again] == list(range(1, len(again) + 1))
        assert [line.kind for line in again].count("JobSubmitted") == 2
        job = rig.coordinator.state.jobs[JobId(2)]
        assert (await pages.following("late", job, 0))[0].kind == "JobSubmitted"
        assert await pages.following("late", None, again[-1].seq + 100) == []
        reads.close()

    with_owner(tmp_path, main)


def test_a_stream_that_leaves_while_it_reads_takes_no_page_from_the_others(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        reads = BulkReads()
        pages = EventPages(rig.coordinator, reads)
        await rig.join()
        await rig.submit()
        leaves = asyncio.create_task(pages.following("ann", None, 0))
        stays = asyncio.create_task(pages.following("bob", None, 0))
        await asyncio.sleep(0)
        leaves.cancel()
        async with asyncio.timeout(180):
            assert await stays
        assert leaves.cancelled()
        reads.close()

    with_owner(tmp_path, main)

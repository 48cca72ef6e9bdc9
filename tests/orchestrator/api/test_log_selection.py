"""Selection of log bytes: from a time on, from a byte on, and from bytes that are gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.client import AsyncClient, LogQuery
from muster.http.views import LogRecord
from tests.orchestrator.api.log_scene import Scene, log_scene, texts
from tests.orchestrator.process import DEADLINE_S, CoordinatorProcess

ONE = "attempt=1&rank=0&stream=stdout"


async def status(scene: Scene, query: str) -> tuple[int, Any]:
    async with scene.user.http.get(f"/v1/jobs/{scene.job}/logs?{query}") as answer:
        return answer.status, await answer.json()


async def test_since_a_time(coordinator: CoordinatorProcess) -> None:
    async with log_scene(coordinator) as scene:
        base = 1_700_000_000.0  # 2023-11-14T22:13:20Z
        for second in range(4):
            await scene.write(second % 2, b"%d\n" % second, base + second)
        logs, job = scene.user.logs, scene.job
        everything = await logs(job)
        assert everything[0]["ts"] == "2023-11-14T22:13:20Z"
        assert texts(await logs(job, "since=2023-11-14T22:13:22Z")) == ["2\n", "3\n"]
        assert texts(await logs(job, "since=2023-11-14T23:13:22%2B01:00")) == ["2\n", "3\n"]
        assert texts(await logs(job, "since=2023-11-14T23:13:22+01:00")) == ["2\n", "3\n"]
        assert texts(await logs(job, "since=2023-11-14T22:13:21Z&tail=2")) == ["2\n", "3\n"]
        assert texts(await logs(job, "since=2023-11-14T22:13:23Z&tail=9")) == ["3\n"]
        assert texts(await logs(job, "since=10m")) == []
        assert texts(await logs(job, "since=9999w")) == ["0\n", "1\n", "2\n", "3\n"]
        after = f"since=2023-11-14T22:13:22Z&cursor={everything[0]['cursor']}"
        assert texts(await logs(job, after)) == ["2\n", "3\n"]
        await scene.finish()


async def test_output_of_a_job_is_never_served_as_a_web_page(
    coordinator: CoordinatorProcess,
) -> None:
    """Somebody with a token in his browser opens the address: it is saved, whatever it holds."""
    async with log_scene(coordinator) as scene:
        await scene.write(0, b"<script>alert(1)</script>\n", 1.0)
        path = f"/v1/jobs/{scene.job}/logs"
        for kind, ending in (("text", "log"), ("ndjson", "ndjson")):
            async with scene.user.http.get(f"{path}?format={kind}") as answer:
                name = f'attachment; filename="job-{scene.job}.{ending}"'
                assert answer.headers["Content-Disposition"] == name
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Content-Security-Policy"] == "default-src 'self'"
                assert answer.content_type in ("text/plain", "application/x-ndjson")
                assert b"alert(1)" in await answer.read()
        await scene.finish()


async def test_without_a_choice_it_is_everything(coordinator: CoordinatorProcess) -> None:
    """All ranks, over HTTP and by a client that says nothing."""
    async with log_scene(coordinator) as scene:
        for rank in (0, 1):
            await scene.write(rank, b"rank %d\n" % rank, float(rank))
        assert texts(await scene.user.logs(scene.job)) == ["rank 0\n", "rank 1\n"]
        client = AsyncClient(coordinator.url, coordinator.admin)
        found = [entry async for entry in client.logs(scene.job, LogQuery())]
        await client.close()
        assert [entry.data for entry in found if isinstance(entry, LogRecord)] == [
            "rank 0\n",
            "rank 1\n",
        ]
        await scene.finish()


async def test_a_stream_resumes_at_a_byte(coordinator: CoordinatorProcess) -> None:
    async with log_scene(coordinator) as scene:
        for number in range(4):
            await scene.write(0, b"line %d\n" % number, float(number))
            await scene.write(1, b"other\n", float(number))
        whole = b"".join(b"line %d\n" % number for number in range(4))
        for offset in (0, 1, 6, 7, 8, 20, len(whole) - 1, len(whole), len(whole) + 1):
            *records, trailer = await scene.user.logs(scene.job, f"{ONE}&offset={offset}")
            assert "".join(texts(records)).encode() == whole[offset:]
            assert all(r["node_rank"] == 0 for r in records)
            assert not records or records[0]["offset"] == offset
            assert trailer["end"] is False
        await scene.finish()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("offset=3", "names a byte of one stream"),
        ("attempt=1&rank=0&offset=3", "names a byte of one stream"),
        ("rank=0&stream=stdout&offset=3", "names a byte of one stream"),
        ("attempt=1&rank=0&stream=stdout,stderr&offset=3", "names a byte of one stream"),
        ("attempt=1&stream=setup&rank=0&offset=3", "names a byte of one stream"),
        (f"{ONE}&offset=3&cursor=l1.0", "exclude each other"),
        (f"{ONE}&offset=-1", "is not a whole number"),
        ("since=yesterday", "is neither a duration nor a time"),
        ("since=5", "needs a unit"),
        ("since=2023-11-14T22:13:20", "without a time zone"),
        ("tail=some", "is not a whole number"),
    ],
)
async def test_an_impossible_selection_is_refused(
    coordinator: CoordinatorProcess, query: str, said: str
) -> None:
    async with log_scene(coordinator) as scene:
        code, body = await status(scene, query)
        assert code == 400
        assert said in body["detail"]
        await scene.finish()


async def test_logs_that_went_are_said_to_be_gone(tmp_path: Path) -> None:
    short = {"keep_bytes_max": 1, "free_bytes_min": 0}
    with CoordinatorProcess(tmp_path, job_logs=short).start() as coordinator:
        async with log_scene(coordinator) as scene:
            await scene.write(0, b"old\n", 1.0)
            await scene.finish()
            await scene.user.ended(scene.job)
            await scene.deliver(0)
            await scene.deliver(1)
            assert texts(await scene.user.logs(scene.job)) == ["old\n"]
        coordinator.terminate()
        coordinator.start()
        async with log_scene(coordinator) as scene:
            # It sweeps as it starts, beside the first requests.
            async with asyncio.timeout(DEADLINE_S):
                while (answer := await scene.user.http.get("/v1/jobs/1/logs")).status == 200:
                    await answer.release()
                    await asyncio.sleep(0.02)
            body = await answer.json()
            assert (answer.status, body["code"]) == (410, "logs_removed")
            assert "the logs of job 1 were removed at 20" in body["detail"]
            assert "job_logs.keep_bytes_max" in body["detail"]
            await scene.write(0, b"new\n", 1.0)
            assert texts(await scene.user.logs(scene.job)) == ["new\n"], "a running job's are kept"
            await scene.finish()
        assert [event["job"] for event in coordinator.logged("logs_removed")] == [1]

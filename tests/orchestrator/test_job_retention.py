"""Jobs that ended long ago are forgotten: by age and by number, the oldest first."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec, Shell
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from orchestrator.journal.archive import Archived
from orchestrator.journal.backup import examined
from orchestrator.journal.journal import Journal
from orchestrator.journal.schema import FILE_NAME
from orchestrator.journal.writer import JournalWriter
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.job_archive import JobArchive, row_of
from orchestrator.shell.job_retention import JobRetention, RetentionPolicy
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import DEADLINE_S, CoordinatorProcess
from tests.orchestrator.user import user_of

SPEC = JobSpec(name="demo", run=Shell("true"))
CANCELLED = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by ann")
FOREVER = 1e12
DAY = 86400.0
HOUR = 3600.0


def history(job: int, began: float = 0.0) -> list[tuple[f.Fact, float]]:
    """Job n ends at second n."""
    return [
        (f.JobSubmitted(JobId(job), SPEC, "ann", f"key-{job}", "digest"), began + job),
        (f.JobEnded(JobId(job), CANCELLED), began + job),
    ]


def row(job: int, began: float = 0.0) -> Archived:
    return row_of(replay_job(history(job, began)), "digest")


def with_jobs(folder: Path, jobs: int, began: float = 0.0) -> Journal:
    """A journal with so many jobs in its archive."""
    journal = Journal.open(folder)
    for job in range(1, jobs + 1):
        journal.append(history(job, began))
    for first in range(1, jobs + 1, 100):
        assert journal.archive([row(n, began) for n in range(first, min(first + 100, jobs + 1))])
    return journal


def sweep(
    folder: Path, keep: RetentionPolicy, *, now: float = 0.0, doubt: str = ""
) -> tuple[int, JobArchive]:
    """Return the number of jobs forgotten in an hour."""
    moments = (Instant(0.0, now - HOUR), Instant(HOUR, now))
    gone, archive = sweeps(folder, keep, *moments, doubt=doubt)
    return sum(gone), archive


def sweeps(
    folder: Path, keep: RetentionPolicy, *moments: Instant, doubt: str = ""
) -> tuple[list[int], JobArchive]:
    """Return the number of jobs forgotten at each of these moments, in one process that begins with
    the first."""

    async def run() -> tuple[list[int], JobArchive]:
        journal = Journal.open(folder)
        writer = JournalWriter(journal)
        archive = JobArchive(writer, State(), journal.tally(), journal.forgotten_to)
        coordinator = SimpleNamespace(
            archive=archive,
            now=lambda: moments[0],
            clock_doubt=lambda: doubt,
            may_remove_by_age=lambda: not doubt,
        )
        forgetting = JobRetention(cast(Coordinator, coordinator), keep)
        gone = []
        try:
            for moment in moments:
                coordinator.now = lambda now=moment: now
                gone.append(await forgetting.sweep())
        finally:
            writer.close()
        return gone, archive

    return asyncio.run(run())


def left(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        return [job for (job,) in database.execute("SELECT job FROM archived ORDER BY job")]


def test_a_job_that_ran_long_is_not_old_when_it_ends(tmp_path: Path) -> None:
    """Although its number is the lowest."""
    with closing(Journal.open(tmp_path)) as journal:
        ends = {1: 100.0, **{job: float(job) for job in range(2, 41)}}
        for job, at in ends.items():
            journal.append([(fact, at) for fact, _ in history(job)])
            ended = [(fact, at) for fact, _ in history(job)]
            assert journal.archive([row_of(replay_job(ended), "digest")])
    assert sweep(tmp_path, RetentionPolicy(FOREVER, 20))[0] == 20
    assert left(tmp_path) == [1, *range(22, 41)]


@pytest.mark.parametrize(
    ("keep", "now", "first"),
    [
        (RetentionPolicy(FOREVER, 1000), 0.0, 1),
        (RetentionPolicy(FOREVER, 10), 0.0, 591),
        (RetentionPolicy(100.0, 1000), 400.0, 300),
        (RetentionPolicy(1.0, 1000), 1e9, 600),
        (RetentionPolicy(100.0, 10), 400.0, 591),
    ],
    ids=["nothing", "number", "age", "all but the newest", "both"],
)
def test_the_oldest_go_first(tmp_path: Path, keep: RetentionPolicy, now: float, first: int) -> None:
    with_jobs(tmp_path, 600).close()
    gone, archive = sweep(tmp_path, keep, now=now)
    assert left(tmp_path) == list(range(first, 601))
    assert (gone, archive.ended.total()) == (first - 1, 601 - first)
    assert archive.forgotten_to == first - 1
    assert sweep(tmp_path, keep, now=now)[0] == 0


def test_jobs_that_ended_before_the_clock_was_set_are_kept_as_long_as_the_rest(
    tmp_path: Path,
) -> None:
    """A machine without a clock of its own: it is 1970 until somebody says what time it is."""
    with_jobs(tmp_path, 20).close()
    hour = 3600.0
    moments = {
        "the first": (Instant(1000.0, 0.0), 0),
        "as the jobs ended": (Instant(1020.0, 20.0), 0),
        "the clock was set": (Instant(1060.0, 1e9), 0),
        "the hour of some is over": (Instant(1010.5 + hour, 1e9 + hour), 10),
        "and set back": (Instant(1010.8 + hour, 5e8), 0),
        "and right again": (Instant(1030.5 + hour, 1e9 + hour), 9),
    }
    gone, _ = sweeps(tmp_path, RetentionPolicy(hour, 1000), *(now for now, _ in moments.values()))
    assert dict(zip(moments, gone, strict=True)) == {
        what: jobs for what, (_, jobs) in moments.items()
    }


def test_nothing_goes_for_its_age_while_the_clock_is_in_doubt(tmp_path: Path) -> None:
    with_jobs(tmp_path, 20).close()
    keep = RetentionPolicy(30 * DAY, 12)
    assert sweep(tmp_path, keep, now=40 * DAY, doubt="the nodes say so")[0] == 8, "by number alone"
    assert sweep(tmp_path, keep, now=40 * DAY)[0] == 10


def test_only_a_part_goes_in_an_hour(tmp_path: Path) -> None:
    """This holds however wrong the clock is, and even if other clocks agree with it."""
    with_jobs(tmp_path, 480).close()
    moments = [Instant(60.0 * minute, 400 * DAY + 60.0 * minute) for minute in range(61)]
    gone, _ = sweeps(tmp_path, RetentionPolicy(365 * DAY, 1000), *moments)
    assert gone[0] == 0
    assert 10 <= sum(gone) <= 20
    assert left(tmp_path)[0] == sum(gone) + 1, "the oldest first"


def test_restarts_remove_nothing_for_its_age(tmp_path: Path) -> None:
    """A coordinator whose clock is 400 days ahead, in a crash loop."""
    with_jobs(tmp_path, 40).close()
    for _ in range(4):
        gone, _ = sweeps(tmp_path, RetentionPolicy(365 * DAY, 1000), Instant(0.0, 400 * DAY))
        assert gone == [0]
    assert left(tmp_path) == list(range(1, 41))


def test_a_start_with_a_wrong_clock_does_not_vouch_for_the_next(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.last_record_at is None
    with closing(with_jobs(tmp_path, 3)) as journal:
        journal.append([(cf.EpochStarted(2, "abc"), 400 * DAY)])
        assert journal.last_record_at == 3.0, "of the archive"
        journal.append(history(4))
        assert journal.last_record_at == 4.0


def test_a_coordinator_with_a_wrong_clock_removes_no_history_and_says_so(tmp_path: Path) -> None:
    """By its clock it is 40 days later than when it last wrote anything down."""
    coordinator = CoordinatorProcess(
        tmp_path, ended_jobs={"keep_s": 30 * DAY}, job_logs={"keep_s": 7 * DAY}
    )
    with_jobs(coordinator.state_dir, 5, began=time.time() - 40 * DAY).close()
    logs = coordinator.state_dir / "logs"
    for job in (1, 4):
        (logs / str(job) / "1").mkdir(parents=True)
        (logs / str(job) / "1" / "0.stdout.0").write_text("x")

    async def ask() -> None:
        async with user_of(coordinator) as user:

            async def in_doubt() -> bool:
                async with user.http.get("/metrics") as answer:
                    return "muster_clock_in_doubt 1.0" in await answer.text()

            async with asyncio.timeout(DEADLINE_S):
                while not coordinator.events("clock_in_doubt"):
                    await user.get("/v1/jobs/1")
            (event,) = coordinator.events("clock_in_doubt")
            assert "40d after the last record of its journal" in event["why"]
            assert "set the time" in event["hint"]
            assert await in_doubt()
            assert len((await user.get("/v1/jobs"))["jobs"]) == 5
            async with connect(coordinator, "n1") as agent:
                await agent.hello(wall_s=time.time())
                assert not await in_doubt(), "a node confirms the time"
            async with connect(coordinator, "n2") as agent:
                await agent.hello(wall_s=time.time() - 40 * DAY)
                assert await in_doubt(), "this one does not"

    with coordinator.start():
        asyncio.run(ask())
    assert all((logs / str(job) / "1").exists() for job in (1, 4))


def test_remaining_jobs_are_complete_and_no_number_comes_twice(tmp_path: Path) -> None:
    with_jobs(tmp_path, 20).close()
    sweep(tmp_path, RetentionPolicy(FOREVER, 1))
    with examined(tmp_path) as found:
        assert found.archived == 1
    journal = Journal.open(tmp_path)
    assert journal.first_job == 21
    assert journal.forgotten_to == 19
    assert list(journal.append(history(21))) == [41, 42]
    assert [recorded.seq for recorded in journal.replay()] == [41, 42]
    journal.close()


def test_requests_for_forgotten_jobs_get_an_answer(tmp_path: Path) -> None:
    """Also of its logs nothing stays, and the next job has a number of its own."""
    coordinator = CoordinatorProcess(tmp_path, ended_jobs={"keep_max": 2, "keep_s": FOREVER})
    with_jobs(coordinator.state_dir, 5).close()
    logs = coordinator.state_dir / "logs"
    for job in (1, 4):
        (logs / str(job) / "1.0").mkdir(parents=True)

    async def ask() -> None:
        async with user_of(coordinator) as user:

            async def status(method: str, path: str) -> tuple[int, Any]:
                async with user.http.request(method, path) as answer:
                    return answer.status, await answer.json()

            async with asyncio.timeout(180):
                while (await status("GET", "/v1/jobs/3"))[0] == 200:
                    pass
            for method, path in (
                ("GET", ""),
                ("GET", "/spec"),
                ("GET", "/logs"),
                ("POST", "/cancel"),
            ):
                code, body = await status(method, f"/v1/jobs/3{path}")
                assert code == 404
                assert "job 3 was forgotten by retention" in body["detail"]
            assert (await status("GET", "/v1/jobs/4"))[0] == 200
            code, body = await status("GET", "/v1/jobs/6")
            assert (code, body["code"]) == (404, "unknown_job")
            assert [job["id"] for job in (await user.get("/v1/jobs"))["jobs"]] == [5, 4]

    with coordinator.start():
        asyncio.run(ask())
    assert (logs / "4").exists()

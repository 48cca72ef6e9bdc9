"""Submitting, looking, waiting and cancelling over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.spec.parse import parse_mapping
from orchestrator.api import job_list
from orchestrator.api.http.query_params import JobsQuery
from orchestrator.api.http.route import QUERY
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from orchestrator.core.views.display import job_summary
from orchestrator.shell.job_archive import Page, SummaryLine, line_of, row_of
from orchestrator.shell.job_index import JobIndex
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, user_of


@pytest.fixture(scope="module")
def cluster(coordinator: CoordinatorProcess) -> CoordinatorProcess:
    """A coordinator that has seen a node, which is away: jobs are taken, and stay queued."""

    async def join() -> None:
        async with connect(coordinator, "n1") as agent:
            await agent.hello()

    asyncio.run(join())
    return coordinator


async def test_a_submit_is_answered_with_the_job_and_its_place(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        async with user.http.post("/v1/jobs", json={**JOB, "name": "demo"}) as answer:
            body = await answer.json()
            assert answer.status == 201
            assert answer.headers["Location"] == f"/v1/jobs/{body['id']}"
        assert (body["name"], body["user"], body["state"]) == ("demo", "admin-user", "QUEUED")
        shown = await user.get(answer.headers["Location"])
        assert shown["spec"]["name"] == "demo"
        assert {**body, "reason": None} == {**{k: shown[k] for k in body}, "reason": None}


async def test_yaml_is_taken_as_well(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        headers = {"Content-Type": "application/yaml; charset=utf-8"}
        text = "name: from-yaml\nlauncher: none\nrun: [/bin/true]\n"
        async with user.http.post("/v1/jobs", data=text, headers=headers) as answer:
            assert (await answer.json())["name"] == "from-yaml", await answer.text()


async def test_an_idempotency_key_makes_one_job(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        headers = {"Idempotency-Key": "one"}

        async def post(name: str) -> tuple[int, dict[str, object]]:
            body = {**JOB, "name": name}
            async with user.http.post("/v1/jobs", json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        answers = await asyncio.gather(*(post("a") for _ in range(10)))
        assert sorted(status for status, _ in answers) == [200] * 9 + [201]
        assert len({body["id"] for _, body in answers}) == 1
        status, problem = await post("b")
        assert (status, problem["code"]) == (409, "idempotency_conflict")


async def test_jobs_are_listed_in_pages_newest_first(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        made = [await user.submit() for _ in range(5)]
        await user.cancel(made[2])
        seen: list[int] = []
        cursor = ""
        while len(seen) < 5:
            page = await user.get(f"/v1/jobs?limit=2{cursor}")
            seen += [job["id"] for job in page["jobs"]]
            cursor = f"&cursor={page['cursor']}"
        assert seen[:5] == made[::-1]
        queued = await user.get("/v1/jobs?state=QUEUED,HELD&limit=4")
        assert [job["id"] for job in queued["jobs"]] == [n for n in made[::-1] if n != made[2]]
        assert (await user.get("/v1/jobs?user=nobody"))["jobs"] == []
        named = await user.submit(name="only-me")
        for wanted in ("name=only-me", "pool=default&name=only-me&user=admin-user&state=QUEUED"):
            page = await user.get(f"/v1/jobs?{wanted}")
            assert ([job["id"] for job in page["jobs"]], page["cursor"]) == ([named], None)
        assert (await user.get("/v1/jobs?pool=other"))["jobs"] == []
        last = await user.get("/v1/jobs?limit=1000")
        assert last["cursor"] is None


async def test_waiting_ends_with_the_job_or_with_the_time(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        job = await user.submit()
        summary = await user.get(f"/v1/jobs/{job}/wait?timeout_s=0")
        assert summary["state"] == "QUEUED"
        waiting = asyncio.create_task(user.ended(job))
        answer = await user.cancel(job)
        assert (answer["already_ended"], answer["job"]["state"]) == (False, "CANCELLED")
        assert await waiting == ("CANCELLED", 121)
        assert (await user.cancel(job))["already_ended"] is True


async def test_a_cancel_says_who_and_why(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        job = await user.submit()
        body = {"reason": "wrong data", "grace_s": 5}
        async with user.http.post(f"/v1/jobs/{job}/cancel", json=body) as answer:
            assert answer.status == 202
        events = (await user.get(f"/v1/jobs/{job}/events"))["events"]
        assert [event["kind"] for event in events] == [
            "JobSubmitted",
            "CancelRequested",
            "JobEnded",
        ]
        assert events[1]["text"] == "cancel requested by admin-user: wrong data"
        assert events[1]["fields"]["grace_s"] == 5
        after = (await user.get(f"/v1/jobs/{job}/events?after={events[0]['seq']}&limit=1"))[
            "events"
        ]
        assert after == events[1:2]


async def test_version_says_who_asks(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        version = await user.get("/v1/version")
        assert (version["user"], version["role"], version["epoch"]) == ("admin-user", "admin", 1)


def test_the_queue_has_a_limit_that_a_repeated_submit_does_not_meet(tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(coordinator, "n1") as agent:
            await agent.hello()
        async with user_of(coordinator) as user:
            first = await user.submit("first")
            await user.submit()
            async with user.http.post("/v1/jobs", json=JOB) as answer:
                assert answer.status == 429
                assert (await answer.json())["code"] == "queue_full"
            assert await user.submit("first") == first

    with CoordinatorProcess(tmp_path, limits={"queued_jobs_max": 2}).start() as coordinator:
        asyncio.run(main())


def test_jobs_of_too_many_bytes_are_refused_until_one_has_ended(tmp_path: Path) -> None:
    large = {"env": {f"LONG_{number}": "x" * 100_000 for number in range(3)}}

    async def main() -> None:
        async with connect(coordinator, "n1") as agent:
            await agent.hello()
        async with user_of(coordinator) as user:
            first = await user.submit("first", **large)
            async with user.http.post("/v1/jobs", json={**JOB, **large}) as answer:
                assert answer.status == 429
                problem = await answer.json()
                assert problem["code"] == "too_many_bytes"
                assert "limits.spec_bytes_per_user_max" in problem["detail"]
            assert await user.submit("first", **large) == first
            await user.submit()
            await user.cancel(first)
            while (await user.http.post("/v1/jobs", json={**JOB, **large})).status == 429:
                pass

    limits = {"spec_bytes_per_user_max": 500_000}
    with CoordinatorProcess(tmp_path, limits=limits).start() as coordinator:
        asyncio.run(main())


def test_a_page_that_has_looked_far_enough_ends_with_a_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, as the bound is a constant: every job is found once, over as many pages."""
    monkeypatch.setattr(job_list, "LOOKED_AT_MAX", 7)
    state = State()
    spec = parse_mapping(JOB)
    for number in range(1, 31):
        pool = "rare" if number in (3, 17) else "default"
        found = msgspec.structs.replace(spec, pool=pool)
        apply(state, f.JobSubmitted(JobId(number), found, "alice"), 0.0)

    class Nothing:
        async def page(self, *_: object, **__: object) -> Page:
            return Page([], 0)

    class Owner:
        index = JobIndex(state)
        archive = Nothing()

        async def durable_state(self) -> State:
            return state

        def now(self) -> Instant:
            return Instant(0.0, 0.0)

    async def page(cursor: str | None) -> Any:
        request = make_mocked_request("GET", "/v1/jobs")
        request[QUERY] = JobsQuery(pool="rare", cursor=cursor)
        answer = await listing(Owner()).list(request)
        assert isinstance(answer.body, bytes)
        return json.loads(answer.body)

    async def main() -> list[list[int]]:
        pages, cursor = [], None
        while True:
            answer = await page(cursor)
            pages.append([job["id"] for job in answer["jobs"]])
            cursor = answer["cursor"]
            if cursor is None:
                return pages

    assert asyncio.run(main()) == [[], [17], [], [3], []]


class Everything:
    """Rights of somebody who may read every job."""

    def shown_users(self, _request: object) -> None:
        return None

    def allows(self, *_: object) -> bool:
        return True


def listing(owner: Any) -> job_list.JobListApi:
    return job_list.JobListApi(owner, Everything())  # type: ignore[arg-type]


def test_a_job_on_its_way_to_the_archive_is_listed_once() -> None:
    """It is in both for a moment; and pages end where one of the two has not been looked at."""
    state = State()
    for number in (3, 5, 6, 8):
        apply(state, f.JobSubmitted(JobId(number), parse_mapping(JOB), "alice"), 0.0)
    known = {name: job_summary(state, job, Instant(0.0, 0.0)) for name, job in state.jobs.items()}
    there = [msgspec.structs.replace(known[JobId(3)], id=number) for number in (7, 6, 5, 4, 2, 1)]

    class Archive:
        async def page(self, before: int, limit: int, **_: object) -> Page:
            found = [SummaryLine(job.id, job.user, job) for job in there if job.id < before][
                : min(limit, 4)
            ]
            return Page(found, found[-1].id if len(found) == min(limit, 4) else 0)

    class Owner:
        index = JobIndex(state)
        archive = Archive()

        async def durable_state(self) -> State:
            return state

        def now(self) -> Instant:
            return Instant(0.0, 0.0)

    async def pages(limit: int) -> list[list[int]]:
        found, cursor = [], None
        while True:
            request = make_mocked_request("GET", "/v1/jobs")
            request[QUERY] = JobsQuery(limit=limit, cursor=cursor)
            answer = await listing(Owner()).list(request)
            assert isinstance(answer.body, bytes)
            page = json.loads(answer.body)
            found.append([job["id"] for job in page["jobs"]])
            cursor = page["cursor"]
            if cursor is None:
                return found

    for limit in range(1, 10):
        found = asyncio.run(pages(limit))
        assert [job for page in found for job in page] == [8, 7, 6, 5, 4, 3, 2, 1], limit
        assert all(len(page) <= limit for page in found)


def test_jobs_archived_by_an_older_release_are_listed_with_all_fields() -> None:
    """A recorded line is sent as it was written, whatever its texts contain."""
    state = State()
    apply(state, f.JobSubmitted(JobId(1), parse_mapping(JOB), "alice"), 0.0)
    said = 'it said: {"a":1,"ended_unseen_at":8}'
    cause = Cause(CauseCode.RANK_FAILED, Outcome.USER, said, exit=ExitStatus(3))
    apply(state, f.JobEnded(JobId(1), cause), 1.0)
    row = row_of(state.jobs[JobId(1)])
    whole = json.loads(row.summary)
    assert isinstance(line_of(row).summary, msgspec.Raw)
    assert json.loads(msgspec.json.encode(line_of(row).summary)) == whole
    newest = {"time_limit_s", "ended_unseen_at"}
    for missing in ({"ended_unseen_at"}, newest, {"rerun_of", "held_by", "gpus", *newest}):
        older = {key: value for key, value in whole.items() if key not in missing}
        row = row._replace(summary=json.dumps(older, separators=(",", ":")).encode())
        assert json.loads(msgspec.json.encode(line_of(row).summary)) == whole

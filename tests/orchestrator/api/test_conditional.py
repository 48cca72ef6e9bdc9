"""Revisions of a job, the header that asks for one, and the key that makes a request count once."""

import asyncio

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from muster.protocol.ids import JobId
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.parse import parse_mapping
from orchestrator.api.conditional import idempotency_key, job_etag, wanted_revisions
from orchestrator.api.problems import ApiError
from orchestrator.core import facts as f
from orchestrator.core.evolve import apply
from orchestrator.core.state import State
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

SPEC = parse_mapping({"run": ["/bin/true"], "launcher": "none"})


def state_with_job() -> State:
    state = State()
    apply(state, f.EpochStarted(7), 0.0)
    apply(state, f.JobSubmitted(JobId(1), SPEC, "alice"), 0.0)
    return state


def wanted(header: str | None, *, required: bool = False) -> frozenset[int] | None:
    headers = CIMultiDict({} if header is None else {"If-Match": header})
    request = make_mocked_request("PATCH", "/v1/jobs/1", headers=headers)
    return wanted_revisions(request, state_with_job(), required=required)


def test_a_revision_changes_with_every_fact_of_the_job_and_of_no_other() -> None:
    state = state_with_job()
    job = state.jobs[JobId(1)]
    seen = [job_etag(state, job)]
    apply(state, f.JobSubmitted(JobId(2), SPEC, "alice"), 1.0)
    assert job_etag(state, job) == seen[-1]
    apply(state, f.CancelRequested(JobId(1), "alice"), 1.0)
    seen.append(job_etag(state, job))
    apply(state, f.JobEnded(JobId(1), Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "x")), 1.0)
    seen.append(job_etag(state, job))
    assert seen == ['"7.1"', '"7.2"', '"7.3"']


@pytest.mark.parametrize(
    ("header", "revisions"),
    [
        (None, None),
        ("*", None),
        ('"7.3"', {3}),
        ('"7.3", "7.4","else"', {3, 4}),
        ('"6.3"', set()),  # of an earlier life of the coordinator
        ('W/"7.3"', {3} - {3}),  # a weak tag never matches
        ('"of,somebody,else"', set()),
    ],
)
def test_if_match_names_revisions(header: str | None, revisions: set[int] | None) -> None:
    found = wanted(header)
    assert found == (None if revisions is None else frozenset(revisions))


@pytest.mark.parametrize("header", ["7.3", '"7.3', '"a" "b"', "", ",", '"x",' * 16 + '"x"'])
def test_an_if_match_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as caught:
        wanted(header)
    assert (caught.value.status, caught.value.code) == (400, "bad_if_match")


def test_if_match_may_be_demanded() -> None:
    with pytest.raises(ApiError) as caught:
        wanted(None, required=True)
    assert caught.value.status == 428
    assert wanted("*", required=True) is None


def test_two_idempotency_keys_are_none() -> None:
    headers = CIMultiDict([("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    with pytest.raises(ApiError, match="Idempotency-Key"):
        idempotency_key(make_mocked_request("POST", "/v1/jobs", headers=headers))


def test_a_job_is_shown_with_its_etag(coordinator: CoordinatorProcess) -> None:
    async def etag(user: User, job: int) -> str:
        async with user.http.get(f"/v1/jobs/{job}") as answer:
            return answer.headers["ETag"]

    async def main() -> None:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            job = await user.submit()
            first = await etag(user, job)
            assert await etag(user, job) == first
            await user.cancel(job)
            assert await etag(user, job) != first

    asyncio.run(main())

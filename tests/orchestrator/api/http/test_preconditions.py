"""Revisions of a job, the header that asks for one, and the key that makes a request count once."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from muster.protocol.ids import JobId
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import Argv, JobSpec, Shell
from muster.spec.parse import parse_mapping
from orchestrator.api.http.preconditions import (
    idempotency_key,
    job_etag,
    request_digest,
    wanted_revisions,
)
from orchestrator.api.http.problems import ApiError
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

SPEC = parse_mapping({"run": ["/bin/true"], "launcher": "none"})


def state_with_job() -> State:
    state = State()
    apply(state, cf.EpochStarted(7), 0.0)
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


async def test_a_job_is_shown_with_its_etag(coordinator: CoordinatorProcess) -> None:
    async def etag(user: User, job: int) -> str:
        async with user.http.get(f"/v1/jobs/{job}") as answer:
            return answer.headers["ETag"]

    async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
        await agent.hello()
        job = await user.submit()
        first = await etag(user, job)
        assert await etag(user, job) == first
        await user.cancel(job)
        assert await etag(user, job) != first


class Step(msgspec.Struct, frozen=True):
    run: str
    tries: int = 1


class Asked(msgspec.Struct, frozen=True):
    name: str
    steps: tuple[Step, ...]
    env: dict[str, str] = {}


class NextStep(Step, frozen=True):
    after: tuple[str, ...] = ()


class AskedOfTheNextRelease(msgspec.Struct, frozen=True):
    name: str
    steps: tuple[NextStep, ...]
    notify: tuple[str, ...] = ()
    env: dict[str, str] = {}
    labels: dict[str, str] = {}


def test_a_release_with_one_more_field_knows_the_requests_before_it() -> None:
    said = b'{"name": "a", "steps": [{"run": "x"}, {"run": "y", "tries": 2}]}'
    then, now = (msgspec.json.decode(said, type=t) for t in (Asked, AskedOfTheNextRelease))
    assert request_digest(then) == request_digest(now)


@pytest.mark.parametrize(
    "other",
    [
        Asked("b", (Step("x"),), {"a": "1", "b": "2"}),
        Asked("a", (Step("y"),), {"a": "1", "b": "2"}),
        Asked("a", (Step("x", 2),), {"a": "1", "b": "2"}),
        Asked("a", (Step("x"), Step("x")), {"a": "1", "b": "2"}),
        Asked("a", (Step("x"),), {"a": "1"}),
        Asked("a", (Step("x"),)),
    ],
)
def test_another_request_has_another_digest(other: Asked) -> None:
    this = Asked("a", (Step("x", 1),), {"b": "2", "a": "1"})
    assert request_digest(this) == request_digest(Asked("a", (Step("x"),), {"a": "1", "b": "2"}))
    assert len({request_digest(this), request_digest(other), request_digest(this, "of n1")}) == 3


def test_two_ways_to_run_are_two_requests() -> None:
    line = JobSpec(name="a", run=Shell("true"))
    assert request_digest(line) != request_digest(JobSpec(name="a", run=Argv(("true",))))
    assert request_digest(line, "again 1") != request_digest(line, "again 2")


@pytest.mark.parametrize(
    "fields", [{}, {"stop": {"warn": "USR1@5m"}}], ids=["whole", "whole with the defaults"]
)
def test_a_submit_is_known_again_though_the_pools_defaults_are_others_now(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    async def submitted(agent: str) -> int:
        async with user_of(coordinator) as user, connect(coordinator, agent) as node:
            await node.hello()
            return await user.submit("key-1", **fields)

    before: dict[str, object] = {"time_limit": "1h"}
    with CoordinatorProcess(
        tmp_path, pools={"default": {"defaults": before}}
    ).start() as coordinator:
        first = asyncio.run(submitted("n1"))
        assert coordinator.terminate() == 0
        changed = {"defaults": {**before, "priority": 41}}
        coordinator.settings["pools"] = {"default": changed}
        coordinator.start()
        assert asyncio.run(submitted("n1")) == first

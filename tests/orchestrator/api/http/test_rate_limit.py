"""Token buckets, and where they are used."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.api.http.rate_limit import BURST_S, CALLERS_MAX, RateLimit
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, user_of


@given(
    per_s=st.floats(0.5, 100),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_never_more_than_the_rate_and_one_burst(per_s: float, pauses: list[float]) -> None:
    limit, now, passed = RateLimit(per_s), 0.0, 0
    for pause in pauses:
        now += pause
        wait_s = limit.take("a", now)
        passed += wait_s == 0.0
        if wait_s:
            assert limit.take("b", now) == 0.0 or passed, "callers do not pay for each other"
    assert passed <= per_s * (now + BURST_S) + 1


def test_a_client_that_waits_as_asked_passes() -> None:
    limit = RateLimit(0.1)
    assert limit.take("a", 0.0) == 0.0
    wait_s = limit.take("a", 0.0)
    assert wait_s > 0
    assert limit.take("a", wait_s + 1e-6) == 0.0


def test_many_callers_do_not_fill_the_memory() -> None:
    limit = RateLimit(0.1)
    for number in range(3 * CALLERS_MAX):
        limit.take(number, 0.0)
    assert remembered(limit, 3 * CALLERS_MAX) <= CALLERS_MAX


def remembered(limit: RateLimit, callers: int) -> int:
    """Count the callers whose only request the limit still knows, the newest first."""
    return sum(limit.take(number, 0.0) > 0 for number in reversed(range(callers)))


def test_a_token_that_submits_too_fast_is_asked_to_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(coordinator, "n1") as agent:
            await agent.hello()
        async with user_of(coordinator) as user:
            await user.submit("one")
            async with user.http.post("/v1/jobs", json=JOB) as answer:
                assert answer.status == 429
                assert int(answer.headers["Retry-After"]) >= 1
                assert (await answer.json())["code"] == "too_many_submits"
            async with user.http.post("/v1/jobs:validate", json=JOB) as answer:
                assert answer.status == 429

    with CoordinatorProcess(tmp_path, limits={"submits_per_s": 0.1}).start() as coordinator:
        asyncio.run(main())


def test_bad_tokens_are_slowed_down_and_good_ones_beside_them_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with user_of(coordinator) as user:
            bad = {"Authorization": "Bearer nonsense"}
            for status in (401, 429, 429):
                async with user.http.get("/v1/nodes", headers=bad) as answer:
                    assert answer.status == status
                    assert int(answer.headers.get("Retry-After", 0)) >= (status == 429)
            await user.get("/v1/nodes")

    with CoordinatorProcess(tmp_path, limits={"refusals_per_s": 0.1}).start() as coordinator:
        asyncio.run(main())

"""Loss of logs when their disk runs short: first of ended jobs, then of those that use most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import JobId
from orchestrator.core.storage.log_space import Bounds, Full, JobUse, Plan, low_mark, plan

FLOOR = 1 << 20
UNIT = FLOOR // 1000
LOW = low_mark(FLOOR)

USES = st.lists(
    st.tuples(st.integers(0, 5 * FLOOR), st.none() | st.floats(0, 100)), max_size=12
).map(lambda found: [JobUse(JobId(n), *use) for n, use in enumerate(found, 1)])


@given(USES, st.integers(0, 2 * LOW))
def test_only_ended_jobs_are_removed_the_oldest_first_and_no_more_than_needed(
    jobs: list[JobUse], free: int
) -> None:
    remove = plan(jobs, free, FLOOR).remove
    ended = {use.job: use for use in jobs if use.ended_at is not None and use.used > 0}
    assert set(remove) <= set(ended), "never of a running job"
    if free >= LOW:
        assert remove == ()
        return
    ages = [ended[job].ended_at or 0.0 for job in remove]
    assert ages == sorted(ages)
    left = [use.ended_at or 0.0 for job, use in ended.items() if job not in remove]
    assert not ages or not left or max(ages) <= min(left)
    gained = sum(ended[job].used for job in remove)
    if remove:
        assert free + gained - ended[remove[-1]].used < LOW + FLOOR // 2, "the last was needed"
    kept = sum(use.used for job, use in ended.items() if job not in remove)
    assert kept <= FLOOR // 16 or free + gained >= LOW, (
        "room was made while much was left to remove"
    )


def test_small_logs_that_ended_last_are_kept() -> None:
    jobs = [JobUse(JobId(1), 10 * FLOOR, None)]
    jobs += [JobUse(JobId(n), FLOOR // 50, 100.0 + n) for n in range(2, 6)]
    assert plan(jobs, FLOOR, FLOOR).remove == (2,)
    assert plan([use for use in jobs if use.job != 2], FLOOR, FLOOR).remove == ()


@given(USES, st.integers(0, LOW - 1))
def test_a_job_that_uses_little_goes_on(jobs: list[JobUse], free: int) -> None:
    decided = plan(jobs, free, FLOOR)
    assert decided.share is not None
    running = [use.used for use in jobs if use.ended_at is None]
    sizes = {use.job: use.used for use in jobs}
    room = max(0, free + sum(sizes[job] for job in decided.remove) - FLOOR)
    assert decided.share * (len(running) + 1) <= sum(running) + room, "nothing is given twice"
    if running and min(running) <= room:
        assert min(running) <= decided.share, "the smallest job goes on while as much is left"
    assert decided.share >= room // (len(running) + 1), "a job that begins now finds room"


@given(st.integers(1, 8), st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_a_greedy_job_stops_before_it_takes_what_small_jobs_need(
    small: int, writes: list[int]
) -> None:
    """A greedy job fills the disk as fast as it may; the others write a little in turn."""
    free, greedy, uses = 50 * FLOOR, 0, [0] * small
    reserve = FLOOR // 2 // small
    for turn, size in enumerate(writes):
        count = size * UNIT
        while True:
            jobs = [JobUse(JobId(1), greedy, None)]
            jobs += [JobUse(JobId(n), used, None) for n, used in enumerate(uses, 2)]
            share = plan(jobs, free, FLOOR).share
            if share is not None and greedy > share:
                break
            greedy, free = greedy + 100 * UNIT, free - 100 * UNIT
        assert free > FLOOR, "the greedy one left some"
        chosen = turn % small
        if uses[chosen] + count > reserve:
            continue
        assert uses[chosen] <= share, "a small job is never stopped"
        uses[chosen], free = uses[chosen] + count, free - count


def test_with_room_nothing_is_limited() -> None:
    jobs = [JobUse(JobId(1), 10**12, None), JobUse(JobId(2), 10**12, 1.0)]
    assert plan(jobs, LOW, FLOOR) == Plan()


def test_a_lone_job_leaves_room_for_the_next() -> None:
    decided = plan([JobUse(JobId(1), 10**9, None)], LOW - 1, FLOOR)
    assert decided.share is not None
    assert decided.share < 10**9


def test_bounds() -> None:
    bounds = Bounds(100, 50)
    assert bounds.reached(49, 49) is None
    assert bounds.reached(99, 50) is Full.TASK
    assert bounds.reached(100, 0) is Full.JOB

"""The index of waiting jobs leaves out only jobs that are too long, and keeps their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from muster.protocol.ids import JobId
from muster.spec.model import JobSpec, Resources
from orchestrator.core.model.plan import Size, WaitingIndex, size_of
from tests.orchestrator.core.playbook import spec

LIMITS = st.none() | st.floats(0.001, 1e9) | st.sampled_from([1.0, 2.0, 4.0, 2.0**0.5, 1024.0])
SPECS = st.builds(
    lambda pool, gpus, nodes, limit, priority: structs.replace(
        spec(nodes=nodes),
        pool=pool,
        resources=Resources(gpu=gpus),
        time_limit_s=limit,
        priority=priority,
    ),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, 1]),
    st.integers(1, 2),
    LIMITS,
    st.integers(49, 51),
)


@given(
    specs=st.lists(SPECS, max_size=30),
    gone=st.sets(st.integers(0, 29)),
    longest=st.dictionaries(st.integers(0, 3), st.floats(0.0, 1e9), min_size=4),
    first=st.tuples(st.integers(-51, -49), st.integers(1, 30)),
)
def test_jobs_behind_a_place_that_are_short_enough(
    specs: list[JobSpec], gone: set[int], longest: dict[int, float], first: tuple[int, int]
) -> None:
    index = WaitingIndex()
    for number, it in enumerate(specs):
        index.add(it, JobId(number))
    for number in gone:
        if number < len(specs):
            index.remove(specs[number], JobId(number))
    left = [(number, it) for number, it in enumerate(specs) if number not in gone]

    def longest_s(size: Size) -> float:
        _, gpus, nodes = size
        return longest[2 * (gpus or 0) + nodes - 1]

    place = (first[0], JobId(first[1]))
    found = list(index.behind("a", place, longest_s))
    behind = sorted((-it.priority, n) for n, it in left if it.pool == "a")
    behind = [it for it in behind if it >= place]
    assert found == [it for it in behind if it in found]
    short = {
        (-it.priority, n)
        for n, it in left
        if it.time_limit_s is not None and it.time_limit_s <= longest_s(size_of(it))
    }
    assert short.intersection(behind) <= set(found)
    much = {
        (-it.priority, n)
        for n, it in left
        if it.time_limit_s is None or it.time_limit_s > 2.0 * max(1.0, longest_s(size_of(it)))
    }
    assert not much & set(found)
    for number, it in left:
        index.remove(it, JobId(number))
    assert index == WaitingIndex()

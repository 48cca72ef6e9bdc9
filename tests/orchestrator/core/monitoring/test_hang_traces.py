"""Hanging jobs and merely slow ones, labelled: every hang is found and named, nothing else is."""

from __future__ import annotations

from functools import cache

from benchmarks.hangs.score import Score, score
from benchmarks.hangs.traces import cases
from benchmarks.hangs.trial import Trial


@cache
def judged() -> Score:
    return score(cases())


def test_every_hang_is_found_and_nothing_that_is_slow_is_taken_for_one() -> None:
    found = judged()
    assert found.cases >= 200
    assert found.hangs >= 70
    assert found.false_alarms == []
    assert found.missed == []
    assert (found.precision, found.recall) == (1.0, 1.0)


def test_the_rank_that_hangs_is_named() -> None:
    assert judged().misnamed == []


def test_a_job_slow_for_more_than_ten_minutes_is_reported_as_slow() -> None:
    assert judged().misjudged_slow == []


def test_a_verdict_comes_within_ninety_seconds() -> None:
    """Measured in virtual time from the start of the hang; without a cadence within six minutes."""
    limits = {"left behind at its exit": 360}
    late = {
        name: max(delays)
        for name, delays in judged().delays.items()
        if max(delays) > limits.get(name, 90)
    }
    assert late == {}


def test_without_stacks_no_job_that_is_slow_is_restarted() -> None:
    """Silence alone may be a file server's; what is stopped by a signal is no matter of stacks."""
    for case in cases(seed=11, each=3):
        firm = [one.verdict for one in Trial(case, stacks=False).run() if one.verdict.firm]
        assert bool(firm) is (case.name == "stopped by a signal"), case

"""The comparison with Slurm: the window of jobs, the figures of squeue, and the goal."""

from __future__ import annotations

import pytest

from benchmarks.queue.quality import CONSERVATIVE, Score
from benchmarks.queue.replay import Wanted
from benchmarks.queue.slurm_window import (
    LONGEST_S,
    MINUTE_S,
    SCALE,
    SLURM,
    by_ours,
    ended,
    missed,
    table,
    window,
)

BEGAN = 1_000.0


def test_slurm_can_represent_the_limits_of_all_jobs() -> None:
    jobs = window(1, 300)
    assert len(jobs) == 300
    assert all(it.limit_s % MINUTE_S == 0 for it in jobs)
    assert all(it.runs_s <= min(it.limit_s, LONGEST_S) for it in jobs)


def test_the_lines_of_squeue_become_times_of_the_jobs() -> None:
    wanted = {1: Wanted(0.0, 30.0, 60.0, 1, 0), 2: Wanted(0.0, 30.0, 60.0, 1, 0)}
    lines = "2 COMPLETED 1001 1003 1005\n1 COMPLETED 1000 1000 1001\n"
    first, second = ended(lines, wanted, BEGAN)
    assert (first.began, first.ended) == (0.0, SCALE)
    assert (second.wanted.at, second.began, second.ended) == (SCALE, 3 * SCALE, 5 * SCALE)


@pytest.mark.parametrize("lines", ["", "1 TIMEOUT 1000 1000 1001\n"])
def test_a_job_that_is_lost_or_killed_spoils_the_comparison(lines: str) -> None:
    with pytest.raises(RuntimeError, match="Slurm: "):
        ended(lines, {1: Wanted(0.0, 30.0, 60.0, 1, 0)}, BEGAN)


def test_ours_hold_their_nodes_for_as_long_as_slurm_s() -> None:
    jobs = [Wanted(0.0, 100.0, 1_800.0, 32, 0), Wanted(1.0, 100.0, 1_800.0, 32, 0)]
    found = by_ours(CONSERVATIVE, jobs, 20.0)
    assert found.wait_s == pytest.approx(119.0)
    assert found.slowdown == pytest.approx(219.0 / 100.0)


def test_the_goal_is_a_mean_wait_like_slurm_s() -> None:
    theirs = Score(1_000.0, 1.0, 1.0, 0.5, 1.0)
    assert missed({SLURM: theirs, CONSERVATIVE: theirs._replace(wait_s=1_100.0)}) == []
    slow = {SLURM: theirs, CONSERVATIVE: theirs._replace(wait_s=1_200.0)}
    assert missed(slow) == ["the mean wait is 1.20 of Slurm's, not 1.1"]
    assert "| conservative | 20.0 min | 1.20 |" in table(slow)

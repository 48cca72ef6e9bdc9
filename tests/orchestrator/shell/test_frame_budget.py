"""The bounds on reports of one agent, and on log lines about agents that are refused."""

from orchestrator.shell.frame_budget import (
    LINES_AT_ONCE,
    REPORTS_AT_ONCE,
    REPORTS_PER_S,
    LineBudget,
    ReportPace,
)


def test_an_agent_that_reports_without_end_is_slowed() -> None:
    pace = ReportPace()
    assert max(pace.take(50.0) for _ in range(REPORTS_AT_ONCE)) < 1e-6
    now = 50.0
    for _ in range(300):
        now += pace.take(now)
    assert abs(now - 50.0 - 300 / REPORTS_PER_S) < 1e-6


def test_an_agent_that_was_quiet_may_report_much_at_once() -> None:
    pace = ReportPace()
    while pace.take(50.0) < 1e-3:
        pass
    later = 50.0 + 2 * REPORTS_AT_ONCE / REPORTS_PER_S
    assert max(pace.take(later) for _ in range(REPORTS_AT_ONCE)) < 1e-6
    assert pace.take(later) > 1e-3


def test_six_thousand_agents_that_are_refused_in_seven_seconds_write_few_lines() -> None:
    budget = LineBudget()
    taken = [budget.take(1000.0 + number * 7 / 6000) for number in range(6000)]
    written = [left_out for left_out in taken if left_out is not None]
    assert LINES_AT_ONCE < len(written) <= LINES_AT_ONCE + 7
    assert written[:LINES_AT_ONCE] == [0] * LINES_AT_ONCE
    # The next line says how many are missing.
    last = budget.take(1010.0)
    assert last is not None
    assert sum(written) + last + len(written) == 6000


def test_lines_come_back_with_time() -> None:
    budget = LineBudget()
    while budget.take(5.0) is not None:
        pass
    assert budget.take(5.5) is None
    assert budget.take(6.0) == 2
    assert budget.take(6.0) is None
    assert [budget.take(1e6) for _ in range(LINES_AT_ONCE)] == [1] + [0] * (LINES_AT_ONCE - 1)

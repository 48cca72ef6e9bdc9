"""Idle GPUs of a task: never judged on one reading, nor while a reading is missing."""

from __future__ import annotations

from agent.core import inputs as s
from agent.core.gpu_idle import GAP_MAX_S, IdleStretch, idle_since, update
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from tests.agent.core.playbook import TASK, Agent, reports


def course(*readings: tuple[float, list[int | None]]) -> IdleStretch:
    found = IdleStretch()
    for at, percents in readings:
        found = update(found, percents, 5, at)
    return found


def test_a_single_reading_proves_nothing() -> None:
    assert idle_since(course((100.0, [0, 0])), 30.0) is None


def test_a_row_of_readings_does() -> None:
    row: list[tuple[float, list[int | None]]] = [(100.0 + 5 * step, [0, 4]) for step in range(7)]
    assert idle_since(course(*row[:-1]), 30.0) is None
    assert idle_since(course(*row), 30.0) == 100.0


def test_one_busy_gpu_restarts_the_idle_time() -> None:
    found = course((100.0, [0, 0]), (130.0, [0, 5]))
    assert found.since is None
    assert update(found, [0, 0], 5, 135.0).since == 135.0


def test_a_gpu_that_cannot_be_read_is_not_idle() -> None:
    assert course((100.0, [0, 0]), (130.0, [0, None])).since is None
    assert course((100.0, [])).since is None


def test_a_long_gap_between_readings_counts_as_unknown() -> None:
    late = 100.0 + GAP_MAX_S + 1.0
    assert course((100.0, [0]), (late, [0])).since == late


def last(agent: Agent, since: float | None) -> TaskReport:
    return reports(agent.turn(s.TaskObserved(TASK, s.TaskChanges(idle_since=since))))[-1]


def test_a_change_is_one_report_and_it_says_for_how_long() -> None:
    agent = Agent()
    agent.running()
    agent.mono = 500.0
    said = last(agent, 200.0)
    assert (said.state, said.observed.idle_s) == (TaskState.STARTED, 300.0)
    agent.mono = 600.0
    assert last(agent, None).observed.idle_s is None


def test_before_the_start_nothing_is_said_of_it() -> None:
    agent = Agent()
    agent.at_gate()
    agent.mono = 500.0
    assert last(agent, 200.0).observed.idle_s is None


def test_a_finished_task_is_not_reported_idle() -> None:
    agent = Agent()
    agent.connect()
    assert agent.turn(s.TaskObserved(TASK, s.TaskChanges(idle_since=1.0))) == []

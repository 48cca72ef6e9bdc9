"""The record of a task: on disk before it counts, and read by the next agent process."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.record import TaskRecord
from agent.core.shim_protocol import (
    ShimExit,
    ShimLimit,
    ShimPhase,
    ShimStart,
    ShimStatus,
    ShimStop,
)
from muster.protocol.ids import TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.states import TaskState
from tests.agent.core.playbook import ARRANGE, PATHS, TASK, Agent, reports, sent_to_shim

PLAN = replace(ARRANGE, key="ab", terms=Terms(1))
STOP = m.StopTask(TASK, grace_s=3.0)
RUNS = ShimStatus(TASK, ShimPhase.RUNNING, running_s=9.0)


def at_gate(plan: m.ArrangeTask = PLAN) -> Agent:
    agent = Agent(quick=False)
    agent.connect()
    agent.hear(m.PrepareTask(TASK, "none", "/w", None, (), {}, 300.0))
    agent.turn(s.TaskPlaced(TASK, PATHS, ()))
    agent.shim(ShimPhase.NEW)
    agent.shim(ShimPhase.PREPARED)
    agent.effects.clear()
    agent.hear(plan)
    return agent


@pytest.mark.parametrize("merged", [False, True])
def test_the_gate_opens_once_the_plan_is_on_disk(merged: bool) -> None:
    agent = at_gate(replace(PLAN, start=merged))
    if not merged:
        agent.hear(m.StartTask(TASK))
    assert not [it for it in sent_to_shim(agent.effects) if isinstance(it, ShimStart)]
    (start,) = sent_to_shim(agent.store(agent.effects))
    assert isinstance(start, ShimStart)
    assert reports(agent.shim(ShimPhase.RUNNING, running_s=0.0))[-1].terms == 1


def test_the_record_of_an_earlier_plan_opens_no_gate() -> None:
    agent = at_gate()
    earlier = list(agent.effects)
    agent.hear(replace(PLAN, argv=("other",)))
    agent.hear(m.StartTask(TASK))
    assert not sent_to_shim(agent.store(earlier))


def running(plan: m.ArrangeTask = PLAN) -> Agent:
    agent = at_gate(plan)
    agent.store(agent.effects)
    agent.hear(m.StartTask(TASK))
    agent.shim(ShimPhase.RUNNING, running_s=0.0)
    return agent


def test_a_stop_is_confirmed_once_it_is_on_disk() -> None:
    agent = running()
    stopped = agent.hear(STOP)
    assert sent_to_shim(stopped) == [ShimStop("SIGTERM", 3.0)]
    assert not [it for it in reports(stopped) if it.stop_stored]
    assert reports(agent.shim(ShimPhase.STOPPING, running_s=1.0))[-1].stop_stored is False
    assert reports(agent.store(stopped))[-1].stop_stored


def test_the_report_of_a_stop_s_effect_confirms_it() -> None:
    agent = running()
    agent.quick = True
    assert not reports(agent.hear(STOP))
    assert reports(agent.shim(ShimPhase.STOPPING, running_s=1.0))[-1].stop_stored


def test_an_ended_task_confirms_a_stop() -> None:
    agent = running()
    agent.quick = True
    agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    confirmed = agent.hear(m.StopTask(TASK, force=True))
    assert [(it.state, it.stop_stored) for it in reports(confirmed)] == [(TaskState.CLEANED, True)]
    assert reports(agent.hear(STOP))[-1].stop_stored


def test_a_stop_that_comes_before_the_folder_is_stored_with_it() -> None:
    agent = Agent(quick=False)
    agent.connect()
    agent.hear(m.PrepareTask(TASK, "none", "/w", None, (), {}, 300.0))
    assert not [it for it in agent.hear(STOP) if isinstance(it, a.StoreRecord)]
    placed = agent.turn(s.TaskPlaced(TASK, PATHS, ()))
    agent.store(placed)
    assert reports(agent.shim(ShimPhase.CLEANED))[-1].stop_stored


def test_the_next_agent_process_continues_a_stop() -> None:
    agent = Agent()
    record = TaskRecord("boot", "c1", PLAN, PLAN.terms, STOP)
    assert ShimStop("SIGTERM", 3.0) in sent_to_shim(
        agent.turn(s.TaskFound(TASK, RUNS, PATHS, record=record))
    )
    agent.turn(s.LinkUp())
    hello = agent.effects[-2]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    (said,) = hello.report.tasks
    assert (said.stop_stored, said.terms) == (True, 1)


def test_a_gang_that_waits_at_its_gate_is_arranged_again() -> None:
    """Another agent process may not have arranged everything."""
    plan = replace(PLAN, hosts=(("n1", "10.0.0.1"), ("n2", "10.0.0.2")))
    agent = Agent()
    status = ShimStatus(TASK, ShimPhase.PREPARED)
    agent.turn(s.TaskFound(TASK, status, PATHS, record=TaskRecord("boot", "c1", plan, plan.terms)))
    agent.connect(TASK)
    assert reports(agent.effects)[-1].state is TaskState.PREPARED
    assert a.ArrangeNetwork(TASK, plan) in agent.hear(plan)


def test_only_the_stop_of_an_earlier_boot_counts() -> None:
    agent = Agent()
    record = TaskRecord("earlier", "c1", PLAN, PLAN.terms, STOP)
    agent.turn(s.TaskFound(TASK, RUNS, PATHS, record=record))
    held = agent.state.tasks[TASK]
    assert (held.arrange, held.terms, held.stop) == (None, None, STOP)


LIMITED = replace(ARRANGE, terms=Terms(1, 100.0, 70.0, "SIGUSR1"))
RAISED = ChangeTerms(TASK, Terms(2, 200.0, 170.0, "SIGUSR1"))


def limits(effects: list[a.Effect]) -> list[ShimLimit]:
    return [it for it in sent_to_shim(effects) if isinstance(it, ShimLimit)]


def test_the_shim_has_the_time_limit_before_the_program_starts() -> None:
    agent = at_gate(LIMITED)
    agent.store(agent.effects)
    first, second = sent_to_shim(agent.hear(m.StartTask(TASK)))
    assert first == ShimLimit(1, 100.0, 70.0, "SIGUSR1")
    assert isinstance(second, ShimStart)


def test_a_changed_limit_is_followed_and_confirmed_once_it_is_on_disk() -> None:
    agent = running(LIMITED)
    taken = agent.hear(RAISED)
    assert not sent_to_shim(taken)
    assert [it.terms for it in reports(agent.hear(RAISED))] == [1]
    stored = agent.store(taken)
    assert limits(stored) == [ShimLimit(2, 200.0, 170.0, "SIGUSR1")]
    assert [it.terms for it in reports(stored)] == [2]
    agent.quick = True
    assert not limits(agent.hear(ChangeTerms(TASK, Terms(1, 5.0))))
    assert limits(agent.hear(ChangeTerms(TASK, Terms(3)))) == [ShimLimit(3)]


def test_the_next_agent_process_passes_on_what_was_stored() -> None:
    agent = Agent()
    record = TaskRecord("boot", "c1", LIMITED, RAISED.terms)
    found = agent.turn(s.TaskFound(TASK, RUNS, PATHS, record=record))
    assert limits(found) == [ShimLimit(2, 200.0, 170.0, "SIGUSR1")]
    unlimited = Agent()
    record = TaskRecord("boot", "c1", PLAN, PLAN.terms)
    assert not sent_to_shim(unlimited.turn(s.TaskFound(TASK, RUNS, PATHS, record=record)))


def test_new_terms_change_no_task_that_has_ended_or_has_no_plan() -> None:
    agent = running(LIMITED)
    agent.quick = True
    agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    assert [it.terms for it in reports(agent.hear(RAISED))] == [1]
    (gone,) = reports(agent.hear(ChangeTerms(TaskId("2.1.0"), Terms(2))))
    assert (gone.state, gone.stop_stored) == (TaskState.CLEANED, True)


def test_a_warning_and_the_end_at_the_limit_are_reported() -> None:
    agent = running(LIMITED)
    said = agent.shim(ShimPhase.STOPPING, running_s=100.0, warned_s=70.0, stopped_by="limit")
    assert [(it.warned_s, it.stopped_by) for it in reports(said)] == [(70.0, "limit")]

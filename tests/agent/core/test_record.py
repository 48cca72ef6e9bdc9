"""The record of a task: on disk before it counts, and read by the next agent process."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimExit, ShimPhase, ShimStart, ShimStatus, ShimStop
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import Terms
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

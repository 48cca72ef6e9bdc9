"""An agent's GPUs: reported when they change, and never given to two tasks at once."""

from __future__ import annotations

import msgspec
import pytest

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.shim_protocol import ShimPhase, ShimStatus
from muster.protocol.ids import SessionId, TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.states import TaskState
from tests.agent.core.playbook import PATHS, PREPARE, TASK, Agent, reports

ONE, TWO = GpuDevice("0000:01:00.0", "GPU-1"), GpuDevice("0000:02:00.0", "GPU-2")
GONE = GpuDevice("0000:02:00.0", fault="does not answer")
OTHER = TaskId("2.1.0")
WITH_ONE = msgspec.structs.replace(PREPARE, gpus=("GPU-1",))


def asks(task: TaskId, *gpus: str) -> m.PrepareTask:
    return msgspec.structs.replace(PREPARE, task=task, gpus=gpus)


def observed(*devices: GpuDevice) -> s.NodeObserved:
    return s.NodeObserved(m.NodeChanges(devices=devices))


def test_a_change_is_reported_once() -> None:
    agent = Agent()
    agent.connect()
    assert agent.turn(observed(ONE, TWO)) == [
        a.SendReport(m.Heartbeat(100.0, 0.0, m.NodeChanges(devices=(ONE, TWO))))
    ]
    assert agent.turn(observed(ONE, TWO)) == []
    agent.turn(observed(ONE, GONE))
    inventory = agent.state.observed.inventory
    assert (inventory.gpus, inventory.devices) == (1, (ONE, GONE))


def test_a_change_between_hello_and_welcome_is_reported_after_it() -> None:
    agent = Agent()
    agent.turn(s.LinkUp())
    assert agent.turn(observed(ONE)) == []
    welcome = m.Welcome(1, SessionId(1), 5.0, "0.1.0", "c1")
    reported = [it.report for it in agent.hear(welcome) if isinstance(it, a.SendReport)]
    assert [it.changes.devices for it in reported if isinstance(it, m.Heartbeat)] == [(ONE,)]


def test_a_gpu_that_a_task_still_has_is_given_to_no_other() -> None:
    agent = Agent()
    agent.connect()
    agent.hear(WITH_ONE)
    agent.turn(s.TaskPlaced(TASK, PATHS, ()))
    agent.shim(ShimPhase.NEW)
    (said,) = reports(agent.hear(asks(OTHER, "GPU-2", "GPU-1")))
    assert said.state is TaskState.CLEANED
    assert said.refusal is not None
    assert (said.refusal.code, said.refusal.node_fault) == ("gpu_busy", True)
    assert said.refusal.text == f"task {TASK} on this node still has GPU-1"
    assert OTHER not in agent.state.tasks
    # Another one is free, and this one is when the first is over, be its folder there or not.
    assert agent.hear(asks(OTHER, "GPU-2")) == [a.CreateTask(OTHER, asks(OTHER, "GPU-2"))]
    agent.shim(ShimPhase.CLEANED)
    third = asks(TaskId("3.1.0"), "GPU-1")
    assert agent.hear(third) == [a.CreateTask(third.task, third)]


@pytest.mark.parametrize("phase", [ShimPhase.RUNNING, ShimPhase.STUCK])
def test_so_it_is_with_tasks_of_an_earlier_life(phase: ShimPhase) -> None:
    agent = Agent()
    status = ShimStatus(TASK, phase, log_dir="/t/logs", running_s=1.0)
    agent.turn(s.TaskFound(TASK, status, PATHS, (), gpus=("GPU-1",)))
    agent.connect(TASK)
    (said,) = reports(agent.hear(asks(OTHER, "GPU-1")))
    assert said.refusal is not None
    assert said.refusal.code == "gpu_busy"

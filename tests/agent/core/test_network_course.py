"""The host table of a gang through the agent's core: proved before the start, gone before clean."""

from __future__ import annotations

import msgspec

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimExit, ShimHostfile, ShimPhase, ShimStart, ShimStatus
from muster.protocol.ids import TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.agent.core.playbook import ARRANGE, PATHS, TASK, Agent, reports, sent_to_shim

GANG = msgspec.structs.replace(ARRANGE, hosts=(("n1", "10.0.0.1"), ("n2", "10.0.0.2")))
DENIED = m.Refusal("hosts_unresolved", "n2 is 10.9.9.9 here", node_fault=True)


def planned() -> Agent:
    agent = Agent()
    agent.connect()
    agent.hear(m.PrepareTask(TASK, "torchrun", "/w", None, (), {}, 300.0, 8))
    agent.turn(s.TaskPlaced(TASK, PATHS, (20001,)))
    agent.shim(ShimPhase.NEW)
    agent.shim(ShimPhase.PREPARED)
    agent.effects.clear()
    agent.hear(GANG)
    return agent


def test_a_task_is_arranged_when_its_peers_are_proved() -> None:
    agent = planned()
    assert agent.effects == [
        a.StoreRecord(TASK, TaskRecord("boot", "c1", GANG)),
        a.SendToShim(TASK, ShimHostfile(GANG.hostfile)),
        a.ArrangeNetwork(TASK, GANG),
    ]
    said = reports(agent.turn(s.NetworkArranged(TASK, ("n1 is 127.0.1.1 here",))))
    assert [(x.state, x.warnings) for x in said] == [
        (TaskState.ARRANGED, ("n1 is 127.0.1.1 here",))
    ]
    assert isinstance(sent_to_shim(agent.hear(m.StartTask(TASK)))[0], ShimStart)


def test_a_gang_of_one_needs_no_network_and_gives_none_back() -> None:
    agent = Agent()
    agent.running()
    agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    assert not [x for x in agent.effects if isinstance(x, a.ArrangeNetwork | a.RestoreNetwork)]


def test_a_plan_that_comes_again_is_not_arranged_again() -> None:
    agent = planned()
    assert [x.state for x in reports(agent.hear(GANG))] == [TaskState.PREPARED]
    assert len([x for x in agent.effects if isinstance(x, a.ArrangeNetwork)]) == 1


def test_a_start_that_comes_before_the_proof_opens_the_gate_after_it() -> None:
    agent = planned()
    assert not sent_to_shim(agent.hear(m.StartTask(TASK)))
    assert [type(x) for x in sent_to_shim(agent.turn(s.NetworkArranged(TASK)))] == [ShimStart]
    assert not sent_to_shim(agent.hear(m.StartTask(TASK)))


def test_a_refusal_is_reported_and_opens_no_gate() -> None:
    agent = planned()
    agent.hear(m.StartTask(TASK))
    done = agent.turn(s.NetworkRefused(TASK, DENIED))
    assert [(x.state, x.refusal) for x in reports(done)] == [(TaskState.PREPARED, DENIED)]
    assert not sent_to_shim(done)


def test_names_are_taken_back_before_a_task_is_clean() -> None:
    agent = planned()
    agent.turn(s.NetworkArranged(TASK))
    agent.hear(m.StartTask(TASK))
    agent.shim(ShimPhase.RUNNING, running_s=0.0)
    over = agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(3))
    assert a.RestoreNetwork(TASK) in over
    assert [x.state for x in reports(over)] == [TaskState.EXITED]
    assert [x.state for x in reports(agent.turn(s.NetworkRestored(TASK)))] == [TaskState.CLEANED]
    assert not agent.turn(s.NetworkRestored(TASK))


def test_a_success_is_reported_once_its_names_are_taken_back() -> None:
    agent = planned()
    agent.turn(s.NetworkArranged(TASK))
    agent.hear(m.StartTask(TASK))
    agent.shim(ShimPhase.RUNNING, running_s=0.0)
    over = agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    assert a.RestoreNetwork(TASK) in over
    assert not reports(over)
    (said,) = reports(agent.turn(s.NetworkRestored(TASK)))
    assert (said.state, said.exit) == (TaskState.CLEANED, ExitStatus(0))


def test_a_gang_that_is_rolled_back_while_it_is_arranged_hears_no_late_proof() -> None:
    agent = planned()
    agent.hear(m.StopTask(TASK, force=True))
    over = agent.shim(ShimPhase.CLEANED)
    assert a.RestoreNetwork(TASK) in over
    assert [x.state for x in reports(over)] == [TaskState.ASSIGNED]
    assert [x.state for x in reports(agent.turn(s.NetworkRestored(TASK)))] == [TaskState.CLEANED]
    assert not agent.turn(s.NetworkArranged(TASK))
    assert not agent.turn(s.NetworkRefused(TASK, DENIED))


def test_names_of_an_earlier_agent_process_are_removed() -> None:
    agent = Agent()
    status = ShimStatus(TASK, ShimPhase.RUNNING, running_s=9.0)
    assert not agent.turn(s.TaskFound(TASK, status, PATHS))
    agent.connect(TASK)
    assert a.RestoreNetwork(TASK) in agent.shim(ShimPhase.CLEANED, running_s=9.0, exit=ShimExit(0))


def test_a_task_that_had_ended_meanwhile_is_clean_when_its_names_are_gone() -> None:
    agent = Agent()
    status = ShimStatus(TASK, ShimPhase.CLEANED, running_s=9.0, exit=ShimExit(0))
    assert agent.turn(s.TaskFound(TASK, status, PATHS)) == [a.RestoreNetwork(TASK)]
    agent.turn(s.NetworkRestored(TASK))
    (said,) = reports(agent.connect(TASK))
    assert said.state is TaskState.CLEANED


def test_a_gang_at_its_gate_is_arranged_again_for_a_new_agent() -> None:
    agent = Agent()
    agent.turn(s.TaskFound(TASK, ShimStatus(TASK, ShimPhase.PREPARED), PATHS))
    agent.connect(TASK)
    assert a.ArrangeNetwork(TASK, GANG) in agent.hear(GANG)
    agent.hear(m.StartTask(TASK))
    assert [type(x) for x in sent_to_shim(agent.turn(s.NetworkArranged(TASK)))] == [ShimStart]


def test_the_launchers_port_is_let_go_just_before_its_gate_opens() -> None:
    agent = planned()
    launcher = m.RendezvousCheck(TASK, "n1", "10.0.0.1", 20001)
    agent.hear(msgspec.structs.replace(GANG, rendezvous=launcher))
    agent.turn(s.NetworkArranged(TASK))
    opened = agent.hear(m.StartTask(TASK))
    assert [type(x) for x in opened] == [a.WatchPeers, a.ReleasePort, a.SendToShim]


def test_a_worker_holds_no_port() -> None:
    agent = planned()
    elsewhere = m.RendezvousCheck(TaskId("1.1.9"), "n9", "10.0.0.9", 20001)
    agent.hear(msgspec.structs.replace(GANG, rendezvous=elsewhere))
    agent.turn(s.NetworkArranged(TASK))
    assert not [x for x in agent.hear(m.StartTask(TASK)) if isinstance(x, a.ReleasePort)]

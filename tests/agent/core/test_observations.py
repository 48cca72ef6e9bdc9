"""Observations reported around a task: networks as they change, fabric and GPUs."""

from __future__ import annotations

import msgspec
import pytest

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.shim_protocol import ShimPhase
from agent.core.state import State
from muster.protocol.ids import SessionId
from muster.protocol.link import control_channel as m
from muster.protocol.observations.fabric import FabricGpu, NodeFabric
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from muster.protocol.states import TaskState
from tests.agent.core.playbook import IDENTITY, INVENTORY, PATHS, PREPARE, TASK, Agent, reports

ETH0 = (Interface("eth0", InterfaceKind.ETHERNET, ("10.0.0.1/24",)),)
ETH1 = (Interface("eth1", InterfaceKind.ETHERNET, ("10.1.0.1/24",)),)


def with_interfaces(interfaces: tuple[Interface, ...]) -> Agent:
    inventory = msgspec.structs.replace(INVENTORY, interfaces=interfaces)
    return Agent(State(IDENTITY, m.NodeObservations(inventory)))


def observed(interfaces: tuple[Interface, ...]) -> s.NodeObserved:
    return s.NodeObserved(m.NodeChanges(interfaces=interfaces))


def beat(interfaces: tuple[Interface, ...]) -> a.Effect:
    return a.SendReport(m.Heartbeat(100.0, 0.0, m.NodeChanges(interfaces=interfaces)))


def test_addresses_that_every_machine_has_are_not_reported_to_the_gang() -> None:
    faces = (
        Interface("lo", InterfaceKind.LOOPBACK, ("127.0.0.1/8", "::1/128")),
        Interface("docker0", InterfaceKind.VIRTUAL, ("172.17.0.1/16",)),
        Interface("veth1", InterfaceKind.VETH, ("10.0.1.1/24",)),
        *ETH0,
    )
    agent = with_interfaces(faces)
    agent.at_gate()
    said = [r.prepared.addresses for r in reports(agent.effects) if r.prepared is not None]
    assert set(said) == {("10.0.1.1", "10.0.0.1")}


def test_a_network_that_a_task_finds_changed_is_reported_by_itself_and_in_the_next_hello() -> None:
    agent = with_interfaces(ETH0)
    agent.connect()
    agent.hear(PREPARE)
    placed = agent.turn(s.TaskPlaced(TASK, PATHS, (20001,), ETH1))
    said = [x.report for x in placed if isinstance(x, a.SendReport)]
    assert [x.changes.interfaces for x in said if isinstance(x, m.Heartbeat)] == [ETH1]
    agent.turn(s.LinkDown())
    (hello,) = [x.report for x in agent.turn(s.LinkUp()) if isinstance(x, a.SendReport)]
    assert isinstance(hello, m.Hello)
    assert hello.inventory.interfaces == ETH1


@pytest.mark.parametrize("seen", [ETH0, None])
def test_a_network_that_is_as_it_was_is_not_reported_again(
    seen: tuple[Interface, ...] | None,
) -> None:
    agent = with_interfaces(ETH0)
    agent.connect()
    agent.hear(PREPARE)
    placed = agent.turn(s.TaskPlaced(TASK, PATHS, (20001,), seen))
    assert not any(isinstance(x.report, m.Heartbeat) for x in placed if isinstance(x, a.SendReport))
    assert agent.state.observed.inventory.interfaces == ETH0


def test_a_network_that_changes_is_reported_at_once_and_after_the_welcome() -> None:
    agent = with_interfaces(ETH0)
    agent.connect()
    assert agent.turn(observed(ETH0)) == []
    assert agent.turn(observed(ETH1)) == [beat(ETH1)]
    assert agent.turn(observed(ETH1)) == []
    agent.turn(s.LinkDown())
    agent.turn(s.LinkUp())
    assert agent.turn(observed(ETH0)) == []
    welcome = m.Welcome(1, SessionId(2), 5.0, "0.1.0", "c1")
    assert beat(ETH0) in agent.hear(welcome)


def test_a_task_is_prepared_when_the_fabric_has_been_seen() -> None:
    """It may be later than the interpreter is at its gate, or sooner."""
    seen = NodeFabric(group="InfiniBand MT4129")
    probed = s.TaskObserved(TASK, s.TaskChanges(fabric=seen))
    for order in ((probed, None), (None, probed)):
        agent = Agent()
        agent.connect()
        agent.hear(PREPARE)
        agent.turn(s.TaskPlaced(TASK, PATHS, (20001,), None, None))
        first, last = order
        if first is not None:
            agent.turn(first)
        (said,) = reports(agent.shim(ShimPhase.PREPARED))
        if last is not None:
            assert (said.state, said.prepared) == (TaskState.ASSIGNED, None)
            (said,) = reports(agent.turn(last))
        assert said.state is TaskState.PREPARED
        assert said.prepared is not None
        assert said.prepared.fabric == seen


def test_no_gpus_are_reported_for_tasks_with_whole_nodes() -> None:
    """A gang of a thousand nodes writes what every node says into the journal."""
    seen = NodeFabric(gpus=(FabricGpu("0000:1b:00.0", "GPU-1", (2,)),))
    for gpus, expected in (((), ()), (("GPU-1",), seen.gpus)):
        agent = Agent()
        agent.connect()
        agent.hear(msgspec.structs.replace(PREPARE, gpus=gpus))
        agent.turn(s.TaskPlaced(TASK, PATHS, (20001,), None, seen))
        (said,) = reports(agent.shim(ShimPhase.PREPARED))
        assert said.prepared is not None
        assert said.prepared.fabric is not None
        assert said.prepared.fabric.gpus == expected


def test_a_probe_of_a_task_that_is_gone_is_no_news() -> None:
    assert not Agent().turn(s.TaskObserved(TASK, s.TaskChanges(fabric=NodeFabric())))

"""RDMA hardware of a node is reported when it changes, because placement depends on it."""

from __future__ import annotations

from agent.core import effects as a
from agent.core import inputs as s
from muster.protocol.ids import SessionId
from muster.protocol.link import control_channel as m
from muster.protocol.observations.fabric import NodeRdma
from tests.agent.core.playbook import Agent

EIGHT = NodeRdma("InfiniBand MT4129", 8, 8, "one")
SEVEN = NodeRdma("InfiniBand MT4129", 7, 8, "other")


def observed(rdma: NodeRdma | None) -> s.NodeObserved:
    return s.NodeObserved(m.NodeChanges(rdma=rdma))


def test_a_change_is_reported_once() -> None:
    agent = Agent()
    agent.connect()
    said = [a.SendReport(m.Heartbeat(100.0, 0.0, m.NodeChanges(rdma=EIGHT)))]
    assert agent.turn(observed(EIGHT)) == said
    assert agent.turn(observed(EIGHT)) == []
    # The last known state remains while the hardware cannot be read.
    assert agent.turn(observed(None)) == []
    assert agent.state.observed.inventory.rdma == EIGHT
    assert agent.turn(observed(SEVEN)) != []


def test_hello_has_what_was_seen_before_it() -> None:
    agent = Agent()
    agent.turn(observed(EIGHT))
    (hello, *_) = [it.report for it in agent.turn(s.LinkUp()) if isinstance(it, a.SendReport)]
    assert isinstance(hello, m.Hello)
    assert hello.inventory.rdma == EIGHT


def test_a_change_between_hello_and_welcome_is_reported_after_it() -> None:
    agent = Agent()
    agent.turn(s.LinkUp())
    assert agent.turn(observed(EIGHT)) == []
    welcome = m.Welcome(1, SessionId(1), 5.0, "0.1.0", "c1")
    reported = [it.report for it in agent.hear(welcome) if isinstance(it, a.SendReport)]
    assert [it.changes.rdma for it in reported if isinstance(it, m.Heartbeat)] == [EIGHT]

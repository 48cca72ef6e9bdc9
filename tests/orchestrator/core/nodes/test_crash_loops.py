"""Agents that crash again and again."""

from __future__ import annotations

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import PROTOCOL_MAX, Hello, TaskReport
from muster.protocol.states import TaskState
from orchestrator.core.facts import inputs as s
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.node import AdminState
from tests.orchestrator.core.playbook import OBSERVED, Cluster, prepared, spec

TWICE = Limits(quarantine=Quarantine(restarts=2))


def greet(cluster: Cluster, name: str, life: int) -> None:
    """The agent of a node says hello, in this life of it, with what runs there."""
    cluster.sessions += 1
    node = cluster.state.nodes.get(NodeName(name))
    held = tasks_on(cluster.state, NodeName(name)) if node is not None else []
    tasks = tuple(TaskReport(t.id, TaskState.STARTED, prepared=prepared()) for t in held)
    who = (NodeName(name), f"id-{name}", f"boot-{name}", "0.1.0")
    hello = Hello(*who, OBSERVED, tasks, protocol_max=PROTOCOL_MAX, instance=f"{life}")
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), hello, "127.0.0.1"))


def cluster_of(*names: str, limits: Limits = TWICE) -> Cluster:
    cluster = Cluster(limits=limits)
    for name in names:
        greet(cluster, name, 0)
    return cluster


def live(cluster: Cluster, name: str, lives: range) -> None:
    for life in lives:
        cluster.leave(name)
        greet(cluster, name, life)


def test_the_node_of_an_agent_that_starts_again_and_again_is_drained_and_its_job_runs_on() -> None:
    cluster = cluster_of("a", "b", "c", "d")
    cluster.submit(spec(placement={"include": ["a"]}))
    cluster.run_gang(1)
    live(cluster, "a", range(1, 3))
    assert cluster.node("a").in_service
    live(cluster, "a", range(3, 4))
    drain = cluster.node("a").drain
    assert drain is not None
    assert drain.user == "muster"
    assert drain.reason.startswith("its agent has started 3 times in 10 minutes; see its log")
    assert cluster.node("a").admin is AdminState.DRAINING
    assert cluster.job(1).attempts[0].cause is None


def test_connecting_anew_in_the_same_life_is_nothing() -> None:
    cluster = cluster_of("a", "b", "c", "d")
    for _ in range(5):
        cluster.leave("a")
        greet(cluster, "a", 0)
    assert cluster.node("a").in_service


def test_old_starts_do_not_count() -> None:
    cluster = cluster_of("a", "b", "c", "d")
    live(cluster, "a", range(1, 3))
    cluster.mono += 600.0
    live(cluster, "a", range(3, 5))
    assert cluster.node("a").in_service


def test_never_more_than_a_share_of_the_pool() -> None:
    cluster = cluster_of("a", "b", "c", "d")
    live(cluster, "a", range(1, 4))
    live(cluster, "b", range(1, 4))
    assert [cluster.node(name).in_service for name in "ab"] == [False, True]


def test_none_where_that_is_said() -> None:
    cluster = cluster_of("a", "b", "c", "d", limits=Limits(quarantine=Quarantine(restarts=0)))
    live(cluster, "a", range(1, 20))
    assert cluster.node("a").in_service

"""Gangs whose nodes are near each other: of one switch, as their labels say."""

from __future__ import annotations

from typing import Any

from muster.spec.model import JobSpec
from orchestrator.core.facts.effects import Declined
from orchestrator.core.scheduling.scheduler import why_waiting
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec, task
from tests.orchestrator.core.scheduling.test_rendezvous import eth

LEAVES = {"a": "leaf1", "b": "leaf1", "c": "leaf1", "d": "leaf2", "e": "leaf2"}


def near(nodes: int, **more: Any) -> JobSpec:
    return spec(nodes=nodes, placement={"spread": "same-switch"}, **more)


def cluster_of(leaves: dict[str, str] = LEAVES) -> Cluster:
    cluster = Cluster()
    for name, leaf in leaves.items():
        cluster.join(name, labels={"switch": leaf} if leaf else {})
    return cluster


def gang(cluster: Cluster, job: int) -> list[str]:
    return [t.node for attempt in cluster.job(job).attempts[-1:] for t in attempt.tasks]


def test_a_gang_is_of_one_switch_and_the_smallest_that_suffices() -> None:
    cluster = cluster_of()
    for nodes, wanted in ((2, ["d", "e"]), (3, ["a", "b", "c"])):
        job = cluster.submit(near(nodes)).job  # type: ignore[union-attr]
        assert gang(cluster, job) == wanted
    assert "all of switch leaf1" in cluster.job(2).attempts[0].placement_reason


def test_it_waits_for_one_switch_though_enough_nodes_are_free() -> None:
    cluster = cluster_of()
    cluster.submit(spec(placement={"include": ["a"]}))
    names = cluster.run_gang(1)
    cluster.submit(near(3))
    assert not cluster.job(2).attempts
    reason = why_waiting(cluster.state, cluster.job(2))
    assert reason == "needs 3 nodes that have the same switch, and fewer of the 4 free nodes do"
    found = explain(cluster.state, cluster.job(2), cluster.now)
    said = {verdict.node: verdict.reason.text for verdict in found.nodes}
    assert said["b"] == "is free, and only 2 free nodes have switch leaf1"
    assert any("would start now with nodes: 2" in hint for hint in found.hints)
    cluster.finish(names[0])
    assert gang(cluster, 2) == ["a", "b", "c"]


def test_more_nodes_than_any_switch_has_are_refused_at_submit() -> None:
    cluster = cluster_of({**LEAVES, "f": ""})
    refused = cluster.submit(near(4))
    assert isinstance(refused, Declined)
    assert "4 nodes that have the same switch; the most is 3, of switch leaf1" in refused.text
    alone = cluster_of({"f": ""})
    refused = alone.submit(near(1))
    assert isinstance(refused, Declined)
    assert "f has no label switch, which placement.spread needs" in refused.text


def test_a_network_is_still_needed() -> None:
    cluster = Cluster()
    cluster.join("a", labels={"switch": "leaf1"}, interfaces=eth("e0", "10.0.0.1/24"))
    cluster.join("b", labels={"switch": "leaf1"}, interfaces=eth("e0", "10.9.0.2/24"))
    refused = cluster.submit(near(2))
    assert isinstance(refused, Declined)
    assert "network" in refused.text


def test_an_elastic_gang_takes_the_largest_and_grows_only_there() -> None:
    cluster = cluster_of({"a": "leaf1", "b": "leaf1", "d": "leaf2"})
    cluster.submit(near(1, max_nodes=3, rendezvous="c10d"))
    assert gang(cluster, 1) == ["a", "b"]
    cluster.run_gang(1)
    cluster.join("e", labels={"switch": "leaf2"})
    assert gang(cluster, 1) == ["a", "b"]
    cluster.join("c", labels={"switch": "leaf1"})
    assert gang(cluster, 1) == ["a", "b", "c"]


def test_a_node_that_failed_the_job_is_left_for_another_switch() -> None:
    cluster = cluster_of({"a": "leaf1", "b": "leaf1", "d": "leaf2", "e": "leaf2"})
    cluster.submit(near(2))
    first = gang(cluster, 1)
    cluster.leave(first[0])
    cluster.beat(400)
    cluster.clean(task(1, 1, first.index(first[1])))
    cluster.beat(60)
    assert set(gang(cluster, 1)) == set("abde") - set(first)

"""Order of the nodes of a gang."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.git_code import GitCode
from muster.protocol.ids import NodeName
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState
from muster.spec.model import Placement, Role, Roles
from orchestrator.core.engine import turn as turns
from orchestrator.core.facts.effects import Declined
from orchestrator.core.model.state import State
from orchestrator.core.scheduling.elastic import next_join
from orchestrator.core.scheduling.placement import never_fits, unfit
from orchestrator.core.scheduling.scheduler import next_placement, why_waiting
from tests.orchestrator.core.playbook import Cluster, spec
from tests.orchestrator.core.scheduling.test_rendezvous import eth


def gang(nodes: dict[str, int], wanted: int, launcher: int | None, worker: int | None) -> list[str]:
    """Names in node-rank order, of a job placed on nodes with so many GPUs."""
    cluster = Cluster()
    for name, gpus in nodes.items():
        cluster.join(name, gpus=gpus)
    roles = Roles(Role(nproc_per_node=launcher), Role(nproc_per_node=worker))
    cluster.submit(spec(nodes=wanted, roles=roles))
    return [t.node for t in cluster.job(1).attempts[0].tasks]


@pytest.mark.parametrize(
    ("launcher", "worker", "wanted"),
    [
        (None, None, ["a", "b"]),
        (4, 2, ["c", "a"]),
        (2, 4, ["a", "c"]),
        (2, 8, ["a", "d"]),
        (8, 2, ["d", "a"]),
        (2, 2, ["a", "b"]),
    ],
)
def test_the_launcher_is_the_node_that_suits(
    launcher: int | None, worker: int | None, wanted: list[str]
) -> None:
    assert gang({"a": 2, "b": 2, "c": 4, "d": 8}, 2, launcher, worker) == wanted


def test_the_launcher_is_of_the_network_and_the_switch_of_its_workers() -> None:
    """If a suitable node has too few nodes beside it, another one becomes the launcher."""
    roles = Roles(Role(nproc_per_node=4), Role(nproc_per_node=2))
    apart = Cluster()
    for number, (name, gpus) in enumerate((("a", 8), ("b", 8), ("c", 2), ("d", 2))):
        subnet = 1 if name == "a" else 2
        apart.join(name, gpus=gpus, interfaces=eth("e0", f"10.{subnet}.0.{number}/24"))
    apart.submit(spec(nodes=2, roles=roles))
    assert [t.node for t in apart.job(1).attempts[0].tasks] == ["b", "c"]
    near = Cluster()
    for name, gpus in (("a", 2), ("b", 2), ("c", 8), ("d", 2), ("e", 2)):
        near.join(name, gpus=gpus, labels={"switch": "s1" if name in "ab" else "s2"})
    near.submit(spec(nodes=2, roles=roles, placement={"spread": "same-switch"}))
    assert [t.node for t in near.job(1).attempts[0].tasks] == ["c", "d"]


@pytest.mark.parametrize(
    ("ranks", "gpu", "wanted"), [(8, None, "c"), (2, None, "a"), (9, None, "a"), (4, 2, "a")]
)
def test_a_node_has_a_gpu_for_each_rank_where_there_is_one(
    ranks: int, gpu: int | None, wanted: str
) -> None:
    cluster = Cluster()
    for name, gpus in (("a", 2), ("b", 2), ("c", 8)):
        cluster.join(name, gpus=gpus)
    cluster.submit(spec(nproc_per_node=ranks, resources={"gpu": gpu}))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == [wanted]


def test_a_gang_without_enough_gpus_starts_all_the_same() -> None:
    assert gang({"a": 0, "b": 0, "c": 0}, 3, 4, 2) == ["a", "b", "c"]


def test_why_a_job_waits_names_nodes_in_their_natural_order() -> None:
    cluster = Cluster()
    cluster.join("gpu-10", "gpu-9", "gpu-2")
    cluster.submit(spec(nodes=3))
    cluster.submit(spec(nodes=3))
    reason = why_waiting(cluster.state, cluster.job(2))
    assert reason == "needs 3 nodes, 0 free: " + "; ".join(
        f"gpu-{number} runs job 1" for number in (2, 9, 10)
    )
    unfit = never_fits(cluster.state, spec(nodes=3, resources={"gpu": 8}))
    assert unfit is not None
    assert unfit.index("gpu-2 ") < unfit.index("gpu-9 ") < unfit.index("gpu-10 ")


def test_nodes_that_are_named_are_those_that_are_taken() -> None:
    cluster = Cluster()
    cluster.join("a", "b", "c", "d")
    cluster.submit(spec(nodes=2, nproc_on={"c": 4, "d": 2}, placement={"include": ["c", "d"]}))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["c", "d"]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"resources": {"cpu": 64}}, "small has 4 of the 64 CPUs wanted"),
        ({"resources": {"memory_bytes": 10**12}}, "small has 4.0 GiB of the 1TB of memory wanted"),
        ({"placement": {"labels": {"rack": "r2"}}}, "small has the label rack=r1, not r2"),
        ({"placement": {"labels": {"room": "b"}}}, "small has no label room"),
        # An agent of before does not say that it can, and ignores where the code is.
        ({"git": GitCode("https://h/x", "a" * 40)}, "small cannot fetch code with git: install"),
    ],
)
def test_a_node_that_is_too_small_or_without_a_label_is_not_taken(
    wanted: dict[str, Any], reason: str
) -> None:
    cluster = Cluster()
    cluster.join("small", cpus=4, memory_bytes=4 << 30, labels={"rack": "r1"})
    refused = cluster.submit(spec(**wanted))
    assert isinstance(refused, Declined)
    assert reason in refused.text
    labels = {"rack": "r2", "room": "b"}
    cluster.join("large", cpus=64, memory_bytes=1 << 40, labels=labels, git=True)
    cluster.submit(spec(**wanted))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["large"]


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    looked: list[str] = []
    for name, real in (("next_placement", next_placement), ("next_join", next_join)):

        def look(state: State, name: str = name, real: Any = real) -> Any:
            looked.append(name)
            return real(state)

        monkeypatch.setattr(turns, name, look)
    return looked


def test_facts_that_free_nothing_cause_no_placement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2))
    cluster.submit(spec(nodes=2))
    looked = _counted(monkeypatch)
    first, second = cluster.run_gang(1)
    cluster.beat(30)
    cluster.end(first, ExitStatus(0))
    cluster.end(second, ExitStatus(0))
    assert looked == []
    cluster.clean(first, exit=ExitStatus(0))
    assert "next_placement" in looked
    cluster.clean(second, exit=ExitStatus(0))
    assert len(cluster.job(2).attempts) == 1


def test_every_fact_that_frees_something_causes_placement() -> None:
    """A node that is back, and one whose network has changed."""
    cluster = Cluster()
    one, two = eth("e0", "10.0.0.1/24"), eth("e0", "10.0.0.2/24")
    far = eth("e0", "10.9.0.2/24")
    cluster.join("a", interfaces=one)
    cluster.join("b", interfaces=two)
    cluster.leave("b")
    cluster.submit(spec(nodes=2))
    assert not cluster.job(1).attempts
    cluster.join("b", interfaces=two)
    assert len(cluster.job(1).attempts) == 1
    cluster.submit(spec(nodes=2))
    names = cluster.run_gang(1)
    cluster.rewire("b", far)
    for name in names:
        cluster.finish(name)
    assert cluster.shown(1) is JobState.SUCCEEDED
    assert not cluster.job(2).attempts
    cluster.rewire("b", two)
    assert len(cluster.job(2).attempts) == 1


def test_an_elastic_gang_takes_the_largest_island() -> None:
    cluster = Cluster()
    for number in range(1, 9):
        island = 1 if number in (2, 5) else 2 if number < 7 else 3
        cluster.join(f"n{number}", interfaces=eth("e0", f"10.{island}.0.{number}/24"))
    cluster.submit(spec(nodes=2, max_nodes=8, rendezvous="c10d"))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1", "n3", "n4", "n6"]


def test_two_nodes_with_one_address_leave_an_elastic_gang_the_others() -> None:
    cluster = Cluster()
    for number in range(1, 6):
        address = min(number, 4)
        cluster.join(f"n{number}", interfaces=eth("e0", f"10.0.0.{address}/24"))
    cluster.submit(spec(nodes=2, max_nodes=5, rendezvous="c10d"))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1", "n2", "n3", "n4"]


def test_two_nodes_of_one_address_are_no_reason_to_refuse_what_the_others_can_run() -> None:
    cluster = Cluster()
    for name, address in (("n1", 1), ("n2", 1), ("n3", 3)):
        cluster.join(name, interfaces=eth("e0", f"10.0.0.{address}/24"))
    cluster.submit(spec(nodes=2))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1", "n3"]
    refused = cluster.submit(spec(nodes=3))
    assert isinstance(refused, Declined)
    assert "n1 and n2 both have 10.0.0.1" in refused.text


def test_a_node_that_does_not_report_its_networks_may_be_of_a_gang_on_any() -> None:
    cluster = Cluster()
    cluster.join("old", gpus=8)
    for number in (1, 2):
        cluster.join(f"n{number}", interfaces=eth("e0", f"10.{number}.0.1/24"))
    cluster.submit(spec(nodes=2))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1", "old"]


class _Compared(str):
    """A name that refuses a comparison with another one."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        assert str.__eq__(self, other), "a long list of names is looked through for each node"
        return True


def test_a_node_is_looked_up_in_the_names_of_a_job() -> None:
    cluster = Cluster()
    cluster.join("n1")
    node = cluster.state.nodes[NodeName("n1")]
    names = (*(_Compared(f"other{number}") for number in range(100)), "n1")
    only, never = (
        msgspec.structs.replace(spec(), placement=placement)
        for placement in (Placement(include=names), Placement(exclude=names))
    )
    assert unfit(only, node) is None
    left_out = unfit(never, node)
    assert left_out is not None
    assert left_out.code == "excluded"


@pytest.mark.parametrize(
    ("nodes", "said"), [(1, "the only free node that fits"), (2, "the only 2 free nodes that fit")]
)
def test_the_only_free_nodes_are_named_as_such(nodes: int, said: str) -> None:
    cluster = Cluster()
    cluster.join(*"ab"[:nodes])
    cluster.submit(spec(nodes=nodes))
    assert cluster.job(1).attempts[0].placement_reason == said

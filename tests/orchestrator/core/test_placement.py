"""Which node of a gang is which."""

from __future__ import annotations

import pytest

from muster.spec.types import Role, Roles
from tests.orchestrator.core.playbook import Cluster, spec


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


def test_a_gang_without_enough_gpus_starts_all_the_same() -> None:
    assert gang({"a": 0, "b": 0, "c": 0}, 3, 4, 2) == ["a", "b", "c"]


def test_nodes_that_are_named_are_those_that_are_taken() -> None:
    cluster = Cluster()
    cluster.join("a", "b", "c", "d")
    cluster.submit(spec(nodes=2, nproc_on={"c": 4, "d": 2}, placement={"include": ["c", "d"]}))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["c", "d"]

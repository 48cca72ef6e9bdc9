"""Whose logs are waited for when a job has ended."""

from __future__ import annotations

from typing import Any

from muster.spec.types import Shell
from orchestrator.core.deliveries import awaited
from tests.orchestrator.core.playbook import Cluster, spec, task


def cancelled(**more: Any) -> Cluster:
    """A gang of two that was cancelled when one of its nodes had prepared it."""
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, **more))
    cluster.prepare(task(1, 1, 0))
    cluster.cancel(1)
    cluster.clean(task(1, 1, 0))
    cluster.clean(task(1, 1, 1))
    return cluster


def nodes(cluster: Cluster, *stored: tuple[int, int]) -> list[str]:
    return [task.node for task in awaited(cluster.job(1), stored)]


def test_a_node_on_which_nothing_can_have_run_has_none() -> None:
    cluster = cancelled()
    assert nodes(cluster) == ["n0"]
    assert nodes(cluster, (1, 0)) == []


def test_a_setup_runs_before_its_node_is_prepared() -> None:
    assert nodes(cancelled(setup=Shell("make")), (1, 0)) == ["n1"]

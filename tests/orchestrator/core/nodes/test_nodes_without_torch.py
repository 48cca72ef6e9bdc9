"""A node whose own interpreter has no torch says so, and gets only jobs that do not need it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.spec.model import Argv, Launcher, Role, Roles
from orchestrator.core.views.display import node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec

WHY = "no torch in /opt/muster/bin/python"


def cluster_without_torch(*nodes: str) -> Cluster:
    cluster = Cluster()
    cluster.join(*nodes)
    cluster.observe("a", no_torch=WHY)
    return cluster


def test_it_is_not_free_and_a_job_waits_until_it_has_torch() -> None:
    cluster = cluster_without_torch("a")
    state = node_view(cluster.node("a"), cluster.now).state
    assert state.code == "no_torch"
    assert state.text.startswith(
        f"{WHY}, for jobs that name no `python`; set `python` in its agent"
    )
    cluster.submit(spec())
    assert cluster.job(1).attempts == []
    found = explain(cluster.state, cluster.job(1), cluster.now)
    (verdict,) = found.nodes
    assert (verdict.can, verdict.reason.code) == (False, "no_torch")
    assert verdict.reason.text == f"has {WHY}, and the job names no `python`"
    cluster.observe("a", no_torch="")
    assert [task.node for task in cluster.job(1).attempts[0].tasks] == ["a"]


def test_other_nodes_are_taken() -> None:
    cluster = cluster_without_torch("a", "b")
    cluster.submit(spec())
    assert [task.node for task in cluster.job(1).attempts[0].tasks] == ["b"]


@pytest.mark.parametrize(
    "own",
    [
        {"python": "/opt/training"},
        {"launcher": Launcher.PROCESSES},
        {"launcher": Launcher.NONE},
        {"setup": Argv(("pip", "install", "torch"))},
        {"env": {"PYTHONPATH": "/opt/torch"}},
        {"roles": Roles(worker=Role(env={"PYTHONPATH": "/opt/torch"}))},
    ],
    ids=["python", "processes", "none", "setup", "env", "role"],
)
def test_jobs_that_may_have_torch_or_need_none_run_there(own: dict[str, Any]) -> None:
    cluster = cluster_without_torch("a")
    cluster.submit(spec(**own))
    assert [task.node for task in cluster.job(1).attempts[0].tasks] == ["a"]
    assert node_view(cluster.node("a"), cluster.now).state.code == "busy"


def test_the_text_is_one_line_of_bounded_length() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.observe("a", no_torch="no\ntorch" + "x" * 5000)
    assert cluster.node("a").no_torch == ("no torch" + "x" * 5000)[:1000]

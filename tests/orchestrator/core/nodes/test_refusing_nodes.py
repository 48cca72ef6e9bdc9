"""A node that would refuse every job says so, and gets none."""

from __future__ import annotations

from orchestrator.core.views.display import node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec

WHY = "this agent runs as root and has no run_as"


def test_it_gets_no_job_until_it_takes_them() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.observe("a", refuses_jobs=WHY)
    state = node_view(cluster.node("a"), cluster.now).state
    assert (state.code, state.text) == ("refuses_jobs", f"refuses every job: {WHY}")
    cluster.submit(spec())
    assert cluster.job(1).attempts == []
    (verdict,) = explain(cluster.state, cluster.job(1), cluster.now).nodes
    assert (verdict.can, verdict.reason.code) == (False, "refuses_jobs")
    assert WHY in verdict.reason.text
    cluster.observe("a", refuses_jobs="")
    assert [task.node for task in cluster.job(1).attempts[0].tasks] == ["a"]
    assert node_view(cluster.node("a"), cluster.now).state.code == "busy"


def test_it_says_so_while_a_job_runs_there() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.submit(spec())
    cluster.observe("a", refuses_jobs=WHY)
    state = node_view(cluster.node("a"), cluster.now).state
    assert (state.code, state.text) == (
        "refuses_jobs",
        f"runs job 1; refuses every job: {WHY}",
    )


def test_other_nodes_are_taken() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.observe("a", refuses_jobs=WHY)
    cluster.submit(spec())
    assert [task.node for task in cluster.job(1).attempts[0].tasks] == ["b"]


def test_the_text_is_one_line() -> None:
    cluster = Cluster()
    cluster.join("a")
    cluster.observe("a", refuses_jobs="no\nuser\x1b[2J")
    assert node_view(cluster.node("a"), cluster.now).state.text == "refuses every job: no user [2J"

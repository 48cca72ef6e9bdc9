"""The history of a job is bounded, and counts what it leaves out."""

from __future__ import annotations

from muster.protocol.ids import JobId
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import hangs as hf
from orchestrator.core.model.history import LINES_KEPT, BoundedLines
from orchestrator.core.views.display import job_view
from orchestrator.core.views.evidence import evidence_of
from tests.orchestrator.core.playbook import Cluster, spec


def shown(cluster: Cluster) -> list[str]:
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    return [step.text for step in view.timeline]


def test_the_oldest_lines_go_and_are_counted() -> None:
    lines = BoundedLines()
    for number in range(LINES_KEPT):
        lines.add(float(number), f"line {number}")
    assert lines.entries() == [(float(number), f"line {number}") for number in range(LINES_KEPT)]
    for number in (LINES_KEPT, LINES_KEPT + 1):
        lines.add(float(number), f"line {number}")
        assert len(lines.kept) == LINES_KEPT
    entries = lines.entries()
    assert entries[0] == (1.0, "2 earlier lines are not kept")
    assert entries[1] == (2.0, "line 2")
    assert entries[-1] == (LINES_KEPT + 1.0, f"line {LINES_KEPT + 1}")


def test_users_who_hold_and_release_a_job_without_end() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.drain("n0")
    cluster.submit(spec())
    for number in range(LINES_KEPT + 1):
        cluster.change(1, hold=number % 2 == 0)
    first, *steps = shown(cluster)
    assert first == "submitted by ada"
    assert steps[0] == "1 earlier line is not kept"
    assert (steps[1], steps[-1]) == ("released by ada", "held by ada")
    assert len(steps) == LINES_KEPT + 1


def test_a_gang_that_seems_to_hang_again_and_again() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    cluster.run_gang(1)
    for _ in range(LINES_KEPT + 7):
        apply(cluster.state, hf.HangCleared(JobId(1), 1), cluster.now.wall)
    dropped = "7 earlier lines are not kept"
    assert dropped in shown(cluster)
    assert shown(cluster).count("it moves again") == LINES_KEPT
    (attempt,) = evidence_of(cluster.job(1)).attempts
    assert attempt.happened[0][1] == dropped

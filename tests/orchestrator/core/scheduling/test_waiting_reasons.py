"""Reasons of many jobs that wait behind each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.scheduler import WaitingReasons, why_waiting
from tests.orchestrator.core.playbook import Cluster, spec


class Counted(dict[Any, Node]):
    """The nodes of a state. `looks` counts how often they are gone through."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.looks += 1
        return super().values()

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def looks_for(jobs: int) -> int:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1))
    for _ in range(jobs):
        cluster.submit(spec(nodes=2))
    nodes = Counted(cluster.state.nodes)
    cluster.state.nodes = nodes
    waiting = WaitingReasons(cluster.state)
    queued = list(cluster.state.jobs.values())[1:]
    said = [waiting.why(job) for job in queued]
    assert said == [why_waiting(cluster.state, job) for job in queued]
    assert said[-1].startswith(f"{jobs - 1} ahead in pool default; first is job 2 ")
    nodes.looks = 0
    waiting = WaitingReasons(cluster.state)
    for job in queued:
        waiting.why(job)
    return nodes.looks


def test_the_first_of_a_queue_is_judged_once_for_all_behind_it() -> None:
    """A page of 1000 jobs took 6 s of a queue of 100,000, and 11 s beside 1000 nodes."""
    assert looks_for(2) == looks_for(50) > 0


def test_of_the_first_job_of_a_queue_only_its_own_user_reads_more() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec())
    cluster.submit(spec(nodes=2), user="ann")
    cluster.submit(spec(), user="bob")
    cluster.submit(spec(), user="ann")
    _, first, bobs, anns = cluster.state.jobs.values()
    waiting = WaitingReasons(cluster.state)
    cannot = waiting.why(first)
    assert waiting.why(bobs) == "1 ahead in pool default; first is another user's job"
    assert waiting.why(anns).startswith(
        f"2 ahead in pool default; first is job 2 (priority 50), which {cannot}"
    )

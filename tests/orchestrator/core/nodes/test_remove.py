"""Nodes that are removed: whatever they were part of before, nobody misses them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from muster.protocol.ids import JobId
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.task import OVER
from orchestrator.core.views.display import job_view, node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task
from tests.orchestrator.core.scheduling.test_elastic import elastic, lose, start


def gone(cluster: Cluster, name: str) -> None:
    """Away for longer than any lease."""
    cluster.leave(name)
    cluster.beat(400)


def code(result: a.Result) -> str:
    return result.code if isinstance(result, a.Declined) else "removed"


def test_a_node_that_is_gone_is_forgotten_and_may_come_back() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.drain("a")
    gone(cluster, "a")
    assert code(cluster.remove("a")) == "removed"
    assert set(cluster.state.nodes) == set(cluster.replayed().nodes) == {"b"}
    cluster.pass_time(10_000)
    assert code(cluster.remove("a")) == a.UNKNOWN_NODE
    cluster.join("a")
    assert cluster.node("a").in_service


def test_a_node_that_is_connected_or_may_still_run_a_job_is_refused() -> None:
    cluster = Cluster()
    cluster.join("a")
    assert code(cluster.remove("a")) == "node_connected"
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.leave("a")
    refused = cluster.remove("a")
    assert isinstance(refused, a.Declined)
    assert refused.code == "node_busy"
    assert "may still run job 1" in refused.text
    cluster.beat(400)
    assert cluster.node("a").link is LinkState.LOST
    refused = cluster.remove("a")
    assert isinstance(refused, a.Declined)
    assert refused.hint.endswith("if it is gone for good, first: muster node lost a")
    cluster.declare_lost("a")
    assert code(cluster.remove("a")) == "removed"


def test_a_free_node_stays_until_the_rest_of_its_gang_has_ended() -> None:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(nodes=2, retry={"infra": 0}))
    launcher, worker = cluster.run_gang(1)
    cluster.leave("b")
    cluster.cancel(1)
    cluster.end(launcher, ExitStatus(None, 15), "cancel")
    cluster.clean(launcher)
    cluster.leave("a")
    assert not cluster.node("a").holders
    refused = cluster.remove("a")
    assert isinstance(refused, a.Declined)
    assert "belongs to job 1" in refused.text
    cluster.declare_lost("b")
    assert cluster.state.task(worker) is not None
    assert code(cluster.remove("a")) == "removed"


def test_a_gang_that_goes_on_without_it_runs_and_ends_as_ever() -> None:
    cluster = elastic(3, 1, 3)
    cluster.run_gang(1)
    lose(cluster, 2)
    gone(cluster, "n2")
    assert code(cluster.remove("n2")) == "removed"
    cluster.submit(spec(nodes=2))  # waits: its start is planned by the end of the gang
    cluster.cancel(2)
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert [it.node for it in view.attempts[0].tasks] == ["n0", "n1", "n2", "n2"]
    cluster.requests += 1
    cluster.turn(s.SignalReceived(a.RequestId(cluster.requests), JobId(1), "ada", "SIGUSR1"))
    cluster.join("n2")
    start(cluster, 4)
    gone(cluster, "n2")
    cluster.remove("n2")
    for rank in (0, 1):
        cluster.end(task(1, 1, rank), ExitStatus(0))
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank), exit=ExitStatus(0))
    assert cluster.job(1).phase is JobPhase.ENDED
    assert check(cluster.state) == []
    assert set(cluster.replayed().nodes) == {"n0", "n1"}


def test_a_timer_of_a_job_that_has_ended_fires_for_nobody() -> None:
    cluster = Cluster()
    cluster.join("a")
    idle = {"gpu_util_below": 5, "for_s": 3600.0, "action": "stop"}
    cluster.submit(spec(idle=idle, retry={"infra": 0}))
    cluster.run_gang(1)
    gone(cluster, "a")
    cluster.declare_lost("a")
    assert code(cluster.remove("a")) == "removed"
    cluster.turn(s.TimerFired(a.Timer(a.TimerKind.IDLE, job=JobId(1), attempt=1)))
    assert cluster.job(1).phase is JobPhase.ENDED


def test_a_job_that_waited_for_it_takes_what_there_is() -> None:
    """It had better avoid the other one, as long as there is a choice."""
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec())
    cluster.leave("b")
    cluster.refuse(task(1, 1, 0), "disk_broken", node_fault=True)
    cluster.clean(task(1, 1, 0))
    cluster.beat(60)
    assert len(cluster.job(1).attempts) == 1
    cluster.remove("b")
    assert len(cluster.job(1).attempts) == 2


def test_the_faults_of_a_node_are_removed_with_it() -> None:
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=1, pool_share=1.0)))
    cluster.join("a", "b")
    cluster.submit(spec(placement={"include": ["a"]}, retry={"infra": 0}))
    cluster.refuse(task(1, 1, 0), "disk", node_fault=True)
    cluster.clean(task(1, 1, 0))
    gone(cluster, "a")
    cluster.remove("a")
    assert check(cluster.state) == []
    assert set(cluster.replayed().nodes) == {"b"}


def archive(cluster: Cluster) -> None:
    ended = tuple(j.id for j in cluster.state.jobs.values() if j.phase is JobPhase.ENDED)
    cluster.turn(s.JobsArchived(ended))


PHASE_OF = (AttemptPhase.PREPARING, AttemptPhase.ARRANGING, AttemptPhase.RUNNING)
"""In which an agent gets as far as PREPARED, ARRANGED, STARTED."""


class Chance:
    """Random steps of everything that may happen to a cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits = Limits(quarantine=Quarantine(jobs=2, pool_share=0.5))
        self.cluster = Cluster(limits=limits)
        self.removed = 0

    def step(self) -> None:
        steps: list[Any] = [
            self.join, self.join, self.leave, self.submit, self.work, self.work, self.work,
            self.remove, self.remove, self.drain, self.resume, self.archive, self.pass_time,
            self.cancel, self.restart,
        ]  # fmt: skip
        self.random.choice(steps)()

    def any_node(self) -> str:
        return f"n{self.random.randrange(5)}"

    def join(self) -> None:
        name = self.any_node()
        node = self.cluster.state.nodes.get(name)  # type: ignore[call-overload]
        if node is None or node.session is None:
            self.cluster.join(name)

    def leave(self) -> None:
        node = self.cluster.state.nodes.get(self.any_node())  # type: ignore[call-overload]
        if node is not None and node.session is not None:
            self.cluster.leave(node.name)

    def submit(self) -> None:
        least = self.random.randrange(1, 3)
        more: dict[str, Any] = (
            {"max_nodes": 4, "rendezvous": "c10d"} if self.random.random() < 0.6 else {}
        )
        self.cluster.submit(spec(nodes=least, retry={"infra": 2, "backoff_s": 1.0}, **more))

    def work(self) -> None:
        """Let one task of a running attempt go on, or fail."""
        here = [
            t
            for job in self.cluster.state.jobs.values()
            if job.current is not None
            for t in job.current.tasks
            if t.state not in OVER and self.cluster.state.nodes[t.node].session is not None
        ]
        if not here:
            return
        chosen = self.random.choice(here)
        if self.random.random() < 0.1:
            self.cluster.refuse(chosen.id, "disk", node_fault=True)
            return
        order = [TaskState.PREPARED, TaskState.ARRANGED, TaskState.STARTED, TaskState.EXITED]
        at = order.index(chosen.state) + 1 if chosen.state in order else 0
        attempt = self.cluster.job(chosen.job).attempt(chosen.attempt)
        if attempt.phase is AttemptPhase.STOPPING:
            at = 4
        elif at < 3 and not chosen.joined and attempt.phase is not PHASE_OF[at]:
            return
        if at == 3:
            status = ExitStatus(self.random.choice([0, 1]))
            self.cluster.end(chosen.id, ExitStatus(signal=9) if status.code else status)
        elif at == 4:
            self.cluster.clean(chosen.id)
        else:
            self.cluster.report(chosen.id, order[at], prepared=prepared(), listening=at == 2)

    def remove(self) -> None:
        self.removed += code(self.cluster.remove(self.any_node())) == "removed"

    def drain(self) -> None:
        deadline_s = self.random.choice([None, 0.0, 60.0])
        self.cluster.drain(self.any_node(), deadline_s=deadline_s)

    def resume(self) -> None:
        self.cluster.resume(self.any_node(), check=False)

    def archive(self) -> None:
        archive(self.cluster)

    def pass_time(self) -> None:
        self.cluster.pass_time(self.random.choice([1.0, 20.0, 400.0]))

    def cancel(self) -> None:
        jobs = list(self.cluster.state.jobs)
        if jobs:
            self.cluster.cancel(self.random.choice(jobs), force=self.random.random() < 0.5)

    def restart(self) -> None:
        """A new process with what the journal has; its timers are new, too."""
        if self.random.random() < 0.7:
            return
        facts = self.cluster.facts
        again = Cluster(
            state=self.cluster.replayed(), limits=self.cluster.limits, mono=self.cluster.mono
        )
        again.facts = [*facts, *again.facts]
        again.requests, again.sessions = self.cluster.requests, self.cluster.sessions
        self.cluster = again


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_happens_ends_the_coordinator(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(150):
        chance.step()
        cluster = chance.cluster
        assert check(cluster.state) == []
        for job in cluster.state.jobs.values():
            job_view(cluster.state, job, cluster.now)
            explain(cluster.state, job, cluster.now)
        for node in cluster.state.nodes.values():
            node_view(node, cluster.now)
    assert set(chance.cluster.replayed().nodes) == set(chance.cluster.state.nodes)


def test_nodes_that_jobs_have_met_are_removed_in_it() -> None:
    assert sum(_removed(seed) for seed in range(10)) > 20


def _removed(seed: int) -> int:
    chance = Chance(seed)
    for _ in range(150):
        chance.step()
    return chance.removed

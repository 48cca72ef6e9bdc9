"""Keys and terms of gangs whose agents vouch for each other."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, TaskReport
from muster.protocol.link.terms import Member, Terms
from muster.protocol.states import TaskState
from orchestrator.api.event_text import event_view
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.cluster import EpochStarted
from orchestrator.core.facts.jobs import AttemptArranged
from orchestrator.core.model.leases import vouches
from tests.orchestrator.core.playbook import Cluster, prepared, spec


def plans(
    cluster: Cluster, nodes: int, ports: tuple[int, ...] = (), **more: Any
) -> list[ArrangeTask]:
    """The plans of a new job, in node-rank order."""
    for node in range(nodes):
        cluster.join(f"n{node}", address=f"10.0.0.{node + 1}")
    cluster.submit(spec(nodes=nodes, **more))
    tasks = cluster.job(cluster.state.next_job - 1).attempts[0].tasks
    for task in tasks:
        port = ports[task.rank] if ports else 7079
        said = prepared(address=f"10.0.0.{task.rank + 1}", peer_port=port)
        cluster.report(task.id, TaskState.PREPARED, prepared=said)
    sent = [plan for node in range(nodes) for plan in cluster.commands(f"n{node}", ArrangeTask)]
    found = {plan.task: plan for plan in sent if isinstance(plan, ArrangeTask)}
    return [found[task.id] for task in tasks]


def test_every_member_gets_the_key_and_the_addresses_of_all() -> None:
    cluster = Cluster()
    first, second = plans(cluster, 2, (7079, 7080))
    members = (
        Member(TaskId("1.1.0"), "10.0.0.1", 7079),
        Member(TaskId("1.1.1"), "10.0.0.2", 7080),
    )
    assert first.terms == second.terms == Terms(1, members=members)
    assert first.key == second.key
    assert len(first.key) == 64
    job = cluster.job(1)
    assert vouches(job, job.attempts[0])


@pytest.mark.parametrize(
    ("nodes", "ports", "more"),
    [
        pytest.param(1, (), {}, id="a gang of one"),
        pytest.param(2, (), {"lease_s": 600.0}, id="a lease of the job"),
        pytest.param(2, (7079, 0), {}, id="an agent without a port"),
    ],
)
def test_no_key_for(nodes: int, ports: tuple[int, ...], more: dict[str, Any]) -> None:
    cluster = Cluster()
    for plan in plans(cluster, nodes, ports, **more):
        assert plan.key == ""
        assert plan.terms == Terms(1)
    job = cluster.job(1)
    assert not vouches(job, job.attempts[0])


def test_each_attempt_and_each_cluster_has_a_key_of_its_own() -> None:
    one, other = Cluster(), Cluster(secret="another")
    keys = [plans(it, 2)[0].key for it in (one, other)]
    one.cancel(1)
    for rank in (0, 1):
        one.report(TaskId(f"1.1.{rank}"), TaskState.CLEANED)
    keys.append(plans(one, 2)[0].key)
    assert len(set(keys)) == 3


def test_a_new_coordinator_sends_the_same_key_again() -> None:
    cluster = Cluster()
    sent = plans(cluster, 2)
    after = Cluster(state=cluster.replayed(), secret="another")
    for rank, plan in enumerate(sent):
        held = TaskReport(plan.task, TaskState.PREPARED, prepared=prepared(peer_port=7079))
        after.join(f"n{rank}", address=f"10.0.0.{rank + 1}", tasks=(held,))
        assert after.commands(f"n{rank}", ArrangeTask) == [plan]


def test_no_event_shows_the_secret_or_a_key() -> None:
    cluster = Cluster()
    (key, *_) = {plan.key for plan in plans(cluster, 2)}
    facts = [it for it in cluster.facts if isinstance(it, EpochStarted | AttemptArranged)]
    assert [it.secret for it in facts if isinstance(it, EpochStarted)] == [cluster.secret]
    assert [it.vouch_key for it in facts if isinstance(it, AttemptArranged)] == [key]
    for fact in facts:
        shown = event_view(None, 1, 1.0, fact)
        assert not {"secret", "vouch_key"} & set(shown.fields)
        assert key not in repr(shown)


def test_an_attempt_from_before_a_restore_may_vouch_though_the_journal_lacks_its_key() -> None:
    cluster = Cluster()
    plans(cluster, 2, (0, 0))
    job = cluster.job(1)
    assert not vouches(job, job.attempts[0])
    cluster.turn(s.CoordinatorStarted(9))
    job.left_out_to = 1000
    assert vouches(job, job.attempts[0])

"""Elastic gangs whose members keep each other alive: which terms name whom, and what they prove."""

from __future__ import annotations

from typing import Any, Final

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, PrepareTask, StopTask, TaskReport
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.invariants import check
from orchestrator.core.model.leases import margin_s, over_at
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.task import OVER
from tests.orchestrator.core.playbook import Cluster, prepared, spec

L: Final = Limits().lease_s
WAIT_S: Final = L + margin_s(L)
FIRST, SECOND, THIRD = (TaskId(f"1.1.{rank}") for rank in range(3))


def elastic(nodes: int = 2, free: int = 0) -> Cluster:
    """A gang of `nodes` nodes that runs and may have three, and `free` nodes that join it."""
    cluster = Cluster()
    cluster.join(*(f"n{it}" for it in range(nodes)))
    cluster.submit(spec(nodes=1, max_nodes=3, rendezvous="c10d"))
    cluster.run_gang(1, peer_port=7079)
    cluster.join(*(f"n{nodes + it}" for it in range(free)))
    return cluster


def arrive(cluster: Cluster, task: TaskId) -> None:
    """A node that joins starts its task."""
    cluster.prepare(task, peer_port=7079)
    cluster.report(task, TaskState.ARRANGED, prepared=prepared())
    cluster.report(task, TaskState.STARTED, prepared=prepared())


def members(terms: Terms) -> list[TaskId]:
    return [it.task for it in terms.members]


def sent(cluster: Cluster, name: str) -> list[tuple[int, list[TaskId]]]:
    """The numbers and members of all terms that a node was sent."""
    given = [
        it.terms
        for it in cluster.sent[cluster.node(name).name]
        if isinstance(it, ArrangeTask | ChangeTerms)
    ]
    return [(it.number, members(it)) for it in given if it is not None]


def confirm(cluster: Cluster, task: TaskId, number: int | None = None) -> None:
    more: dict[str, Any] = {} if number is None else {"terms": number}
    cluster.report(task, TaskState.STARTED, prepared=prepared(), **more)


def loses(cluster: Cluster, name: str, task: TaskId) -> None:
    """A node falls silent, as its neighbours report, and the gang continues without it."""
    found = cluster.state.task(task)
    assert found is not None
    cluster.leave(name)
    for other in cluster.job(1).attempts[0].present:
        if other.id != task and cluster.state.nodes[other.node].session is not None:
            silent = ("10.0.0.1",)
            cluster.report(other.id, TaskState.STARTED, prepared=prepared(), silent=silent)
    cluster.beat(60.0)
    assert not found.present


def over(cluster: Cluster, task: TaskId) -> float | None:
    attempt, found = cluster.job(1).attempts[0], cluster.state.task(task)
    assert found is not None
    return over_at(cluster.state, attempt, found)


def test_a_gang_that_may_grow_names_its_only_member() -> None:
    cluster = elastic(1)
    assert sent(cluster, "n0") == [(1, [FIRST])]
    (plan,) = cluster.commands("n0", ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    assert plan.key


def test_a_silent_only_member_is_never_over_by_its_lease() -> None:
    cluster = elastic(1)
    cluster.leave("n0")
    cluster.cancel(1)
    cluster.beat(10 * WAIT_S)
    assert over(cluster, FIRST) is None
    assert cluster.job(1).attempts[0].tasks[0].state not in OVER


def test_a_task_that_joins_is_named_to_the_others_once_it_runs() -> None:
    """Before, it may lack the plan, so that it could not vouch if the coordinator went away."""
    cluster = elastic(1, free=1)
    cluster.prepare(SECOND, peer_port=7079)
    cluster.report(SECOND, TaskState.ARRANGED, prepared=prepared())
    assert sent(cluster, "n0") == [(1, [FIRST]), (2, [FIRST])]
    assert sent(cluster, "n1") == [(2, [FIRST, SECOND])]
    cluster.report(SECOND, TaskState.STARTED, prepared=prepared())
    assert sent(cluster, "n0")[2:] == [(3, [FIRST, SECOND])]
    assert sent(cluster, "n1")[1:] == [(3, [FIRST, SECOND])]
    assert check(cluster.state) == []


def test_a_node_gets_its_plan_once_the_launchers_node_lets_it_in() -> None:
    cluster = elastic(1, free=1)
    (first,) = cluster.commands("n0", ArrangeTask)
    assert isinstance(first, ArrangeTask)
    assert first.terms is not None
    assert first.terms.admits == ("10.0.0.1",)
    # By then, that node holds back its other users.
    attempt = cluster.job(1).attempts[0]
    for node, meets in (("n0", None), ("n1", (("10.0.0.1",), attempt.master_port))):
        (asked,) = cluster.commands(node, PrepareTask)
        assert isinstance(asked, PrepareTask)
        assert asked.meets == meets
    said = prepared(address="10.0.0.2", addresses=("10.0.0.2", "fd00::2"), peer_port=7079)
    cluster.report(SECOND, TaskState.PREPARED, prepared=said)
    assert not cluster.commands("n1", ArrangeTask)
    assert cluster.terms(FIRST).admits == ("10.0.0.1", "10.0.0.2", "fd00::2")
    # The launcher's node has only the terms of its plan.
    confirm(cluster, FIRST, 1)
    assert not cluster.commands("n1", ArrangeTask)
    confirm(cluster, FIRST, 2)
    (second,) = cluster.commands("n1", ArrangeTask)
    assert isinstance(second, ArrangeTask)
    assert second.terms is not None
    assert second.terms.admits == ()
    assert check(cluster.state) == []


def test_a_node_that_waits_to_be_let_in_gets_its_plan_after_a_restart() -> None:
    cluster = elastic(1, free=1)
    said = prepared(address="10.0.0.2", peer_port=7079)
    cluster.report(SECOND, TaskState.PREPARED, prepared=said)
    after = Cluster(state=cluster.replayed())
    after.join("n1", tasks=(TaskReport(SECOND, TaskState.PREPARED, prepared=said),))
    assert not after.commands("n1", ArrangeTask)
    held = TaskReport(FIRST, TaskState.STARTED, prepared=prepared(), terms=1)
    after.join("n0", tasks=(held,))
    assert not after.commands("n1", ArrangeTask)
    assert after.terms(FIRST).admits == ("10.0.0.1", "10.0.0.2")
    confirm(after, FIRST)
    assert after.commands("n1", ArrangeTask)


def test_a_node_that_has_left_is_let_in_no_more() -> None:
    cluster = elastic(2, free=1)
    cluster.prepare(THIRD, addresses=("10.1.0.3",), peer_port=7079)
    cluster.report(THIRD, TaskState.STARTED, prepared=prepared())
    assert "10.1.0.3" in cluster.terms(FIRST).admits
    cluster.clean(THIRD)
    assert not cluster.job(1).attempts[0].tasks[2].present
    assert cluster.terms(FIRST).admits == ("10.0.0.1",)


def test_a_node_whose_agent_cannot_be_asked_does_not_join_a_gang_that_vouches() -> None:
    cluster = elastic(1, free=1)
    cluster.prepare(SECOND)
    left = cluster.job(1).attempts[0].tasks[1].left
    assert left is not None
    assert left.startswith("n1 refused: its agent has no free peer_port")
    assert not cluster.commands("n1", ArrangeTask)
    assert cluster.shown(1) is JobState.RUNNING
    cluster.clean(SECOND)
    assert len(cluster.job(1).attempts[0].tasks) == 2, "it is not asked again"
    assert all(names == [FIRST] for _, names in sent(cluster, "n0"))
    assert check(cluster.state) == []


def test_a_node_whose_agent_cannot_be_asked_joins_a_gang_that_does_not_vouch() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1, max_nodes=3, rendezvous="c10d"))
    cluster.run_gang(1)
    cluster.join("n1")
    cluster.prepare(SECOND)
    assert cluster.commands("n1", ArrangeTask)


def test_terms_have_the_same_numbers_after_a_restart() -> None:
    cluster = elastic(2, free=1)
    arrive(cluster, THIRD)
    loses(cluster, "n1", SECOND)
    attempt, after = cluster.job(1).attempts[0], cluster.replayed()
    again = after.jobs[attempt.job].attempts[0]
    assert (attempt.terms, again.terms) == (4, 4)
    for one, other in zip(attempt.tasks, again.tasks, strict=True):
        mine = (one.planned_terms, one.admitted_from, one.member_from, one.member_until)
        assert mine == (
            *(other.planned_terms, other.admitted_from),
            *(other.member_from, other.member_until),
        )


def test_a_node_that_misses_new_terms_gets_them_when_it_is_back() -> None:
    cluster = elastic(2, free=1)
    cluster.leave("n1")
    arrive(cluster, THIRD)
    assert sent(cluster, "n1") == [(1, [FIRST, SECOND])]
    held = TaskReport(SECOND, TaskState.STARTED, prepared=prepared(), terms=1)
    cluster.join("n1", tasks=(held,))
    assert sent(cluster, "n1")[1:] == [(3, [FIRST, SECOND, THIRD])]


def test_a_member_counts_only_for_those_that_have_confirmed_terms_with_it() -> None:
    """The silent one may be kept alive by the members that it knows."""
    cluster = elastic(2, free=1)
    cluster.leave("n1")
    arrive(cluster, THIRD)
    cluster.cancel(1)
    cluster.report(THIRD, TaskState.CLEANED, stop_stored=True)
    cluster.beat(10 * WAIT_S)
    assert over(cluster, SECOND) is None
    cluster.report(FIRST, TaskState.CLEANED, stop_stored=True)
    at = over(cluster, SECOND)
    assert at == cluster.mono + WAIT_S


def test_a_vote_of_before_the_confirmation_counts_on_the_members_of_before() -> None:
    cluster = elastic(2, free=1)
    arrive(cluster, THIRD)
    cluster.report(THIRD, TaskState.STARTED, prepared=prepared(), stop_stored=True)
    cluster.beat(100.0)
    confirm(cluster, SECOND, 3)
    confirmed_at = cluster.mono
    cluster.leave("n1")
    at = over(cluster, SECOND)
    assert at is not None
    assert at >= confirmed_at + WAIT_S


def test_a_silent_member_that_left_is_over_once_another_knows_it() -> None:
    cluster = elastic(3)
    loses(cluster, "n2", THIRD)
    assert sent(cluster, "n0")[-1] == (2, [FIRST, SECOND])
    assert over(cluster, THIRD) is None
    cluster.beat(10 * WAIT_S)
    confirm(cluster, FIRST, 2)
    assert over(cluster, THIRD) == cluster.mono + WAIT_S
    cluster.beat(WAIT_S - 1)
    third = cluster.job(1).attempts[0].tasks[2]
    assert third.state not in OVER
    cluster.beat(2)
    assert third.state in OVER
    assert check(cluster.state) == []


def test_a_member_that_left_counts_no_more_for_those_that_may_not_know_it() -> None:
    """N may have terms without P, and be kept alive by the rest."""
    cluster = elastic(3)
    loses(cluster, "n2", THIRD)
    boot = TaskReport(THIRD, TaskState.CLEANED, stop_stored=True)
    cluster.join("n2", tasks=(boot,))
    cluster.leave("n1")
    cluster.cancel(1)
    assert cluster.commands("n0", StopTask)
    assert over(cluster, SECOND) is None
    cluster.report(FIRST, TaskState.CLEANED, stop_stored=True)
    assert over(cluster, SECOND) == cluster.mono + WAIT_S


@pytest.mark.parametrize("elastic_gang", [True, False])
def test_a_restored_journal_may_lack_terms_of_an_elastic_gang(elastic_gang: bool) -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    more = {"nodes": 1, "max_nodes": 3, "rendezvous": "c10d"} if elastic_gang else {"nodes": 2}
    cluster.submit(spec(**more))
    cluster.run_gang(1, peer_port=7079)
    cluster.job(1).left_out_to = 1000
    cluster.cancel(1)
    cluster.leave("n1")
    cluster.report(FIRST, TaskState.CLEANED, stop_stored=True)
    assert (over(cluster, SECOND) is None) is elastic_gang

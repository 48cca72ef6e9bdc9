"""A journal that was restored from an older backup: no job runs twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    Hello,
    NodeObservations,
    PrepareTask,
    RankReport,
    Refused,
    StopTask,
    TaskReport,
)
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.jobs import Fact
from orchestrator.core.facts.restored import JournalRestored
from orchestrator.core.model.state import State
from orchestrator.core.views.display import job_view, node_seen
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.nodes.test_vouching import WAIT_S
from tests.orchestrator.core.playbook import INVENTORY, Cluster, prepared, spec, task


def replayed(facts: Sequence[Fact]) -> State:
    state = State()
    for fact in facts:
        if fact.durability is not Durability.EPHEMERAL:
            apply(state, fact, 1_700_000_000.0)
    return state


def restored(backup: Sequence[Fact], **more: Any) -> Cluster:
    """The coordinator that starts after a restore of these facts."""
    facts = [*backup, JournalRestored(1000, **more)]
    cluster = Cluster(replayed(facts), mono=1000.0)
    cluster.facts[:0] = facts
    return cluster


def restarted(cluster: Cluster) -> Cluster:
    facts = list(cluster.facts)
    again = Cluster(cluster.replayed(), mono=cluster.mono)
    again.facts[:0] = facts
    return again


def waiting(*nodes: str, **more: Any) -> tuple[Fact, ...]:
    """A backup with these nodes and a job of one node that was placed on none of them yet."""
    cluster = Cluster()
    cluster.join(*nodes)
    for name in nodes:
        cluster.leave(name)
    cluster.submit(spec(**more))
    assert cluster.shown(1) is JobState.QUEUED
    return tuple(cluster.facts)


def has(state: TaskState = TaskState.STARTED) -> TaskReport:
    return TaskReport(task(1, 1, 0), state, prepared=prepared())


def said(cluster: Cluster) -> str:
    return job_view(cluster.state, cluster.job(1), cluster.now).reason.text


def lost(cluster: Cluster, name: str) -> a.Result:
    cluster.requests += 1
    request = a.RequestId(cluster.requests)
    cluster.turn(s.LostReceived(request, NodeName(name), "ana"))
    return cluster.answers[request]


def test_nothing_is_placed_until_every_node_has_said_hello() -> None:
    cluster = restored(waiting("n1", "n2", "n3"))
    cluster.join("n1")
    assert cluster.shown(1) is JobState.QUEUED
    assert "2 nodes known before the restore have not said hello: n2, n3" in said(cluster)
    found = explain(cluster.state, cluster.job(1), cluster.now)
    assert not found.starts_now
    assert "muster node lost" in found.forecast
    cluster.join("n3")
    assert cluster.shown(1) is JobState.QUEUED
    node = node_seen(cluster.state, cluster.node("n2"), cluster.now)
    assert "muster node lost n2" in node.state.text
    cluster.join("n2")
    assert cluster.job(1).last_attempt == 1000
    assert not cluster.state.awaited
    assert not check(cluster.state)


def test_an_attempt_that_the_backup_lacks_is_over_before_its_job_is_placed() -> None:
    cluster = restored(waiting("n1", "n2"))
    cluster.join("n2")
    cluster.join("n1", tasks=(has(),))
    assert cluster.shown(1) is JobState.QUEUED
    assert "task 1.1.0 on n1" in said(cluster)
    assert [c.task for c in cluster.commands("n1", StopTask) if isinstance(c, StopTask)] == [
        task(1, 1, 0)
    ]
    session = cluster.node("n1").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, has(TaskState.EXITED)))
    assert cluster.shown(1) is JobState.QUEUED, "its files are still there"
    cluster.turn(s.ReportReceived(session, has(TaskState.CLEANED)))
    assert [attempt.number for attempt in cluster.job(1).attempts] == [1000]
    assert cluster.commands("n1", PrepareTask) or cluster.commands("n2", PrepareTask)
    assert not cluster.state.unknown
    assert not check(cluster.state)


@pytest.mark.parametrize("proof", ["reboot", "its agent has it no more", "lost"])
def test_other_proofs_that_an_unknown_attempt_is_over(proof: str) -> None:
    cluster = restored(waiting("n1", "n2"))
    cluster.join("n1", tasks=(has(),))
    cluster.join("n2")
    assert cluster.shown(1) is JobState.QUEUED
    cluster.leave("n1")
    match proof:
        case "reboot":
            hello = cluster.node("n1")
            hello.boot_id = "another"
            cluster.join("n1", tasks=(has(TaskState.CLEANED),))
        case "its agent has it no more":
            cluster.join("n1")
        case _:
            lost(cluster, "n1")
    assert cluster.job(1).last_attempt == 1000


def test_a_reboot_since_the_backup_is_no_proof_for_what_began_after_it() -> None:
    """The journal has the boot id of the backup, not of the boot in which the task began."""
    cluster = restored(waiting("n1", "n2"))
    cluster.node("n1").boot_id = "of the backup"
    cluster.join("n2")
    cluster.join("n1", tasks=(has(),))
    assert cluster.shown(1) is JobState.QUEUED
    assert "task 1.1.0 on n1" in said(cluster)
    session = cluster.node("n1").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, has(TaskState.CLEANED)))
    assert cluster.job(1).last_attempt == 1000
    assert not check(cluster.state)


def test_a_reboot_since_the_backup_starts_no_lease_of_the_other_members() -> None:
    """A task of an attempt of before the restore may have begun in this boot: until its agent has
    confirmed a stop, it vouches for the others.
    """
    backup = Cluster()
    backup.join("n0", "n1")
    backup.submit(spec(nodes=2))
    cluster = restored(backup.facts)
    runs = TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared(peer_port=7079), terms=1)
    cluster.join("n0", boot="next", tasks=(runs,))
    # It has not read the stop.
    cluster.leave("n0")
    cluster.beat(WAIT_S + 600)
    assert cluster.job(1).attempts[0].tasks[1].state is not TaskState.LOST
    cluster.join("n0", boot="next", tasks=(runs,))
    ended = TaskReport(task(1, 1, 0), TaskState.CLEANED, prepared=prepared(), stop_stored=True)
    session = cluster.node("n0").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, ended))
    cluster.beat(WAIT_S + 1)
    assert cluster.job(1).attempts[0].tasks[1].state is TaskState.LOST


@pytest.mark.parametrize("spec", [{}, {"lease_s": 30.0}])
def test_silence_is_no_proof_however_long(spec: dict[str, float]) -> None:
    """Nobody knows with which lease an attempt began that the journal lacks."""
    cluster = restored(waiting("n1", "n2", **spec))
    cluster.join("n1", tasks=(has(),))
    cluster.join("n2")
    cluster.leave("n1")
    cluster.beat(86_400.0)
    assert cluster.shown(1) is JobState.QUEUED
    assert "task 1.1.0 on n1" in said(cluster)


def test_a_node_that_is_declared_lost_is_not_waited_for() -> None:
    cluster = restored(waiting("n1", "n2"), nodes=(NodeName("n3"),))
    cluster.join("n1")
    assert isinstance(lost(cluster, "n1"), a.Declined), "it is connected"
    unknown = lost(cluster, "n9")
    assert isinstance(unknown, a.Declined)
    assert unknown.code == a.UNKNOWN_NODE
    removed = cluster.remove("n2")
    assert isinstance(removed, a.Declined)
    assert "muster node lost n2" in removed.hint
    assert lost(cluster, "n2") == a.NodeServiceChanged(NodeName("n2"), anything=True)
    assert cluster.shown(1) is JobState.QUEUED
    again = restarted(cluster)
    again.join("n1")
    assert again.state.awaited == {"n3"}, "what was declared holds after a restart"
    lost(again, "n3")
    assert again.job(1).last_attempt == 1000


def test_the_operator_goes_on_at_once() -> None:
    cluster = restored(waiting("n1", "n2"), go=True)
    cluster.join("n1")
    assert cluster.job(1).last_attempt == 1000


def test_a_restart_waits_only_for_nodes_that_are_not_settled() -> None:
    cluster = restored(waiting("n1", "n2", "n3"))
    cluster.join("n1", tasks=(has(),))
    cluster.join("n2")
    again = restarted(cluster)
    assert again.state.awaited == {"n1", "n3"}, "the unknown task may still be there"
    again.join("n3")
    assert again.shown(1) is JobState.QUEUED
    assert "n1" in said(again)
    again.join("n1")
    assert again.job(1).last_attempt == 1000


def test_a_running_attempt_is_adopted_and_the_next_one_leaves_numbers_out() -> None:
    before = Cluster()
    before.join("n1", "n2")
    before.submit(spec(retry={"user": 1, "infra": 0}))
    (name,) = before.run_gang(1)
    node = before.job(1).attempts[0].tasks[0].node
    cluster = restored(before.facts)
    cluster.join(*{"n1", "n2"} - {node})
    cluster.join(node, tasks=(TaskReport(name, TaskState.STARTED, prepared=prepared()),))
    assert cluster.shown(1) is JobState.RUNNING
    cluster.finish(name, code=1)
    cluster.beat(60.0)
    assert [attempt.number for attempt in cluster.job(1).attempts] == [1, 1001]
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.attempt == 1001
    again = cluster.job(1).attempts[-1].tasks[0].id
    assert again == task(1, 1001, 0)
    cluster.prepare(again)
    cluster.report(again, TaskState.STARTED, prepared=prepared(), listening=True)
    cluster.finish(again, code=1)
    cluster.beat(60.0)
    assert cluster.shown(1) is JobState.FAILED, "the budget counts attempts, not numbers"
    assert cluster.job(1).user_used == 1
    assert not check(cluster.state)
    story = explain(cluster.state, cluster.job(1), cluster.now).attempts
    assert story[0].then.startswith("retried: attempt 1001")
    assert "after 2 attempts" in story[1].then
    replay = cluster.replayed().jobs[cluster.job(1).id]
    assert [attempt.number for attempt in replay.attempts] == [1, 1001]


@pytest.mark.parametrize("prepared_before", [False, True])
def test_an_attempt_that_its_node_lacks_is_not_begun_again(prepared_before: bool) -> None:
    """In the backup it was about to start. Since then it has run, and its node forgot it."""
    before = Cluster()
    before.join("n1")
    before.submit(spec(retry={"user": 0, "infra": 1}))
    if prepared_before:
        before.prepare(task(1, 1, 0))
    cluster = restored(before.facts)
    cluster.join("n1")
    assert not cluster.commands("n1", PrepareTask), "it would run twice under one number"
    first = cluster.job(1).attempts[0]
    assert first.cause is not None
    assert first.cause.code is CauseCode.RESTORED
    cluster.beat(60.0)
    assert cluster.job(1).last_attempt == 1001
    assert not cluster.node("n1").faults, "the node is not to blame"
    assert not cluster.job(1).avoid
    assert not check(cluster.state)


def test_an_attempt_that_was_starting_is_not_adopted() -> None:
    """Its gang may have met on another port since."""
    before = Cluster()
    before.join("n1")
    before.submit(spec(retry={"user": 0, "infra": 1}))
    before.prepare(task(1, 1, 0))
    facts = [fact for fact in before.facts if type(fact).__name__ != "AttemptStarted"]
    cluster = restored(facts)
    cluster.join("n1", tasks=(has(),))
    assert cluster.job(1).attempts[0].cause is not None
    assert cluster.commands("n1", StopTask)
    cluster.clean(task(1, 1, 0), stopped_by="stop")
    cluster.beat(60.0)
    assert cluster.job(1).last_attempt == 1001
    assert not check(cluster.state)


def test_an_attempt_that_was_stopped_since_the_backup_has_not_completed() -> None:
    """Its ranks ended with 0, as they were asked to end at their time limit."""
    before = Cluster()
    before.join("n1")
    before.submit(spec())
    (name,) = before.run_gang(1)
    cluster = restored(before.facts)
    good = ExitStatus(0)
    held = TaskReport(
        name,
        TaskState.EXITED,
        prepared=prepared(),
        exit=good,
        ranks=(RankReport(0, exit=good),),
        stopped_by="stop",
    )
    cluster.join("n1", tasks=(held,))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.RESTORED
    assert not check(cluster.state)


def test_without_a_restore_an_attempt_is_begun_on_a_node_that_lacks_it() -> None:
    before = Cluster()
    before.join("n1")
    before.submit(spec())
    again = restarted(before)
    again.join("n1")
    assert [c.task for c in again.commands("n1", PrepareTask) if isinstance(c, PrepareTask)] == [
        task(1, 1, 0)
    ]


def test_the_logs_know_later_attempts() -> None:
    cluster = restored(waiting("n1"), attempts=((1, 7),))
    cluster.join("n1")
    assert cluster.job(1).last_attempt == 1007


def test_a_second_restore_leaves_out_more() -> None:
    first = restored(waiting("n1"))
    first.join("n1")
    assert first.job(1).last_attempt == 1000
    second = restored(first.facts, first_attempt=20_000)
    second.join("n1", tasks=(TaskReport(task(1, 1000, 0), TaskState.EXITED),))
    assert second.job(1).next_attempt == 20_000


def test_a_node_is_not_used_while_it_has_a_task_of_an_unknown_job() -> None:
    cluster = restored(waiting("n1"))
    later = TaskReport(task(7, 1, 0), TaskState.STARTED, prepared=prepared())
    cluster.join("n1", tasks=(later,))
    assert cluster.shown(1) is JobState.QUEUED
    found = explain(cluster.state, cluster.job(1), cluster.now)
    assert "task 7.1.0" in found.nodes[0].reason.text
    session = cluster.node("n1").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, TaskReport(task(7, 1, 0), TaskState.CLEANED)))
    assert cluster.job(1).last_attempt == 1000


def test_jobs_that_come_later_begin_with_attempt_1() -> None:
    cluster = restored(waiting("n1", "n2"))
    cluster.join("n1", "n2")
    cluster.submit(spec("later"))
    assert cluster.job(2).last_attempt == 1


def test_no_node_joins_a_gang_of_before_the_restore() -> None:
    before = Cluster()
    before.join("n1", "n2", address="10.0.0.1")
    before.submit(spec(nodes=1, max_nodes=3, rendezvous="c10d", launcher="torchrun"))
    assert before.job(1).attempts
    tasks = before.run_gang(1)
    held = {t.node: t.id for t in before.job(1).attempts[0].tasks}
    assert len(tasks) == len(held)
    cluster = restored(before.facts)
    for name, known in held.items():
        cluster.join(name, tasks=(TaskReport(known, TaskState.STARTED, prepared=prepared()),))
    cluster.join("n3")
    cluster.beat(10.0)
    assert "n3" not in {t.node for t in cluster.job(1).attempts[0].tasks}


def test_an_unknown_task_is_waited_for_without_a_restore_too() -> None:
    """A state folder was put back from a snapshot, which nobody notices."""
    cluster = Cluster(replayed(waiting("n1", "n2")))
    cluster.join("n1", tasks=(has(),))
    cluster.join("n2")
    assert cluster.shown(1) is JobState.QUEUED
    session = cluster.node("n1").session
    assert session is not None
    cluster.turn(s.ReportReceived(session, has(TaskState.CLEANED)))
    assert cluster.job(1).last_attempt == 1


def replaced(cluster: Cluster, name: str, known: str = "") -> Refused | None:
    """Let another machine with this name say hello, whose agent has served the cluster `known`."""
    cluster.sessions += 1
    inventory = msgspec.structs.replace(INVENTORY, machine_id="m9")
    hello = Hello(
        NodeName(name),
        "another",
        "another",
        "0.1.0",
        NodeObservations(inventory),
        protocol_max=PROTOCOL_MAX,
        cluster=known,
    )
    done = cluster.turn(s.HelloReceived(SessionId(cluster.sessions), hello, "127.0.0.9"))
    refused = [it.refused for it in done.effects if isinstance(it, a.RefuseSession)]
    return refused[0] if refused else None


@pytest.mark.parametrize("known", ["", "another cluster"])
@pytest.mark.parametrize("name", ["n1", "later"])
def test_another_machine_of_its_name_does_not_settle_a_node(name: str, known: str) -> None:
    """The node that is waited for may be cut off, with an attempt that the journal lacks."""
    cluster = restored(waiting("n1", "n2"), nodes=(NodeName("later"),))
    for node in {"n1", "n2", "later"} - {name}:
        cluster.join(node, cluster="here")
    refused = replaced(cluster, name, known)
    assert refused is not None
    assert refused.code == "duplicate_name"
    assert f"muster node lost {name}" in refused.text
    assert cluster.state.awaited == {name}
    assert cluster.shown(1) is JobState.QUEUED
    lost(cluster, name)
    assert cluster.job(1).last_attempt == 1000
    assert replaced(cluster, name, known) is None
    assert not check(cluster.state)


@pytest.mark.parametrize("was_restored", [True, False])
def test_another_machine_of_its_name_proves_no_unknown_task_over(was_restored: bool) -> None:
    backup = waiting("n1", "n2")
    cluster = restored(backup) if was_restored else Cluster(replayed(backup))
    cluster.join("n1", tasks=(has(),))
    cluster.join("n2")
    cluster.leave("n1")
    refused = replaced(cluster, "n1")
    assert refused is not None
    assert "muster node lost n1" in refused.text
    assert cluster.shown(1) is JobState.QUEUED
    assert "task 1.1.0 on n1" in said(cluster)
    lost(cluster, "n1")
    assert cluster.shown(1) is not JobState.QUEUED


def test_an_agent_that_knows_the_cluster_settles_its_node() -> None:
    """Its agent was installed again after the backup, or the node joined after it."""
    cluster = restored(waiting("n1"), nodes=(NodeName("later"),))
    assert replaced(cluster, "n1", "here") is None
    cluster.join("later", cluster="here")
    assert not cluster.state.awaited
    assert cluster.job(1).last_attempt == 1000


def test_a_new_node_joins_while_placing_is_held() -> None:
    cluster = restored(waiting("n1"))
    assert replaced(cluster, "n2") is None
    assert cluster.state.awaited == {"n1"}
    cluster.join("n1")
    assert cluster.job(1).last_attempt == 1000


def test_a_second_restore_forgets_no_node_that_the_first_waits_for() -> None:
    first = restored(waiting("n1"), nodes=(NodeName("later"), NodeName("gone")))
    lost(first, "gone")
    second = restored(first.facts)
    assert second.state.awaited == {"n1", "later"}
    second.join("n1")
    assert second.shown(1) is JobState.QUEUED
    assert not restored(first.facts, go=True).state.awaited

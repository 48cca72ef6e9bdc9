"""Nodes that come, go, return and are not who they were."""

from __future__ import annotations

import msgspec
import pytest

from muster.protocol.ids import JobId, NodeName, SessionId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    ForgetTask,
    Hello,
    NodeObservations,
    PrepareTask,
    StartTask,
    StopTask,
    TaskReport,
    Welcome,
)
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import margin_s
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import State
from orchestrator.core.nodes.admission import OUTDATED_WITHIN_S
from tests.orchestrator.core.playbook import INVENTORY, OBSERVED, Cluster, prepared, spec, task


def test_commands_lost_with_a_connection_are_wanted_still() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    cluster.leave("n1")
    cluster.sent.clear()
    cluster.join("n1")
    assert cluster.commands("n1", PrepareTask)
    tasks = [task(1, 1, 0), task(1, 1, 1)]
    for name in tasks:
        cluster.prepare(name)
    cluster.leave("n1")
    cluster.sent.clear()
    cluster.join("n1", tasks=(TaskReport(tasks[1], TaskState.PREPARED, prepared=prepared()),))
    assert cluster.commands("n1", ArrangeTask)
    for name in tasks:
        cluster.report(name, TaskState.ARRANGED, prepared=prepared())
    cluster.leave("n0")
    cluster.sent.clear()
    # Its agent has restarted and forgotten the plan: it gets plan and start together.
    cluster.join("n0", tasks=(TaskReport(tasks[0], TaskState.PREPARED, prepared=prepared()),))
    assert cluster.commands("n0", ArrangeTask)
    assert cluster.commands("n0", StartTask)


def test_a_stale_task_is_stopped_and_then_forgotten() -> None:
    cluster = Cluster()
    stale = task(9, 1, 0)
    cluster.join("n0", tasks=(TaskReport(stale, TaskState.STARTED),))
    (welcome,) = cluster.commands("n0", Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.keep == ()
    assert cluster.commands("n0", StopTask) == [StopTask(stale, "SIGKILL", 0.0, True)]
    session = cluster.state.nodes[NodeName("n0")].session
    assert session is not None
    cluster.turn(s.ReportReceived(session, TaskReport(stale, TaskState.CLEANED)))
    assert cluster.commands("n0", ForgetTask) == [ForgetTask(stale)]


def test_a_silent_node_is_suspect_then_lost_and_its_job_goes_elsewhere_after_the_lease() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(lease_s=300.0))
    cluster.run_gang(1)
    cluster.join("n1")
    cluster.leave("n0")
    assert cluster.state.nodes[NodeName("n0")].link is LinkState.SUSPECT
    cluster.beat(cluster.limits.lease_s)
    assert cluster.shown(1) is JobState.RUNNING
    assert len(cluster.job(1).attempts) == 1
    cluster.beat(margin_s(cluster.limits.lease_s) + 5)
    assert cluster.state.nodes[NodeName("n0")].link is LinkState.LOST
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.NODE_LOST
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1"]


def test_a_connection_without_heartbeats_is_closed() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.pass_time(cluster.limits.silence_s + 1)
    assert cluster.closed == [SessionId(1)]
    assert cluster.state.nodes[NodeName("n0")].link is LinkState.SUSPECT


def test_a_second_agent_of_the_same_name_is_refused_with_both_addresses() -> None:
    cluster = Cluster()
    cluster.join("n0")
    other = Hello(NodeName("n0"), "another-id", "boot-n0", "0.1.0", OBSERVED)
    turn = cluster.turn(s.HelloReceived(SessionId(77), other, "10.9.9.9"))
    (refused,) = [x for x in turn.effects if isinstance(x, a.RefuseSession)]
    assert refused.refused.code == "duplicate_name"
    assert "127.0.0.1" in refused.refused.text
    assert "10.9.9.9" in refused.refused.text


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"node": "n0\n10.6.6.6 bank"}, "bad_name"),
        ({"node": "n0 #"}, "bad_name"),
        ({"node": "7"}, "bad_name"),
        ({"node": "mirror.example.org"}, "bad_name"),
        ({"node": "localhost"}, "bad_name"),
        ({"hostname": "n0\n10.6.6.6 bank"}, "bad_hostname"),
        ({"hostname": "n0 bank"}, "bad_hostname"),
        ({"hostname": "n0#"}, "bad_hostname"),
        ({"hostname": "n0\x00"}, "bad_hostname"),
        ({"address": "10.0.0.1\n10.6.6.6"}, "bad_address"),
        ({"address": "10.0.0.1 bank"}, "bad_address"),
        ({"address": "0.0.0.0"}, "bad_address"),
        ({"address": "somewhere"}, "bad_address"),
    ],
)
def test_an_agent_whose_names_would_spoil_a_hosts_file_is_refused(
    more: dict[str, str], code: str
) -> None:
    cluster = Cluster()
    name = NodeName(more.get("node", "n0"))
    inventory = msgspec.structs.replace(
        INVENTORY,
        hostname=more.get("hostname", "n0"),
        address=more.get("address", INVENTORY.address),
    )
    hello = Hello(name, "id", "boot", "0.1.0", NodeObservations(inventory))
    turn = cluster.turn(s.HelloReceived(SessionId(77), hello, "10.9.9.9"))
    (refused,) = [x for x in turn.effects if isinstance(x, a.RefuseSession)]
    assert refused.refused.code == code
    assert "\n" not in refused.refused.text
    assert not cluster.state.nodes


@pytest.mark.parametrize("gpus", [-1, 1025, 10**400])
def test_an_agent_with_a_number_of_gpus_that_no_node_has_is_refused(gpus: int) -> None:
    cluster = Cluster()
    inventory = msgspec.structs.replace(INVENTORY, gpus=gpus)
    hello = Hello(NodeName("n0"), "id", "boot", "0.1.0", NodeObservations(inventory))
    turn = cluster.turn(s.HelloReceived(SessionId(77), hello, "10.9.9.9"))
    (refused,) = [x for x in turn.effects if isinstance(x, a.RefuseSession)]
    assert refused.refused.code == "bad_gpus"


def test_a_host_name_that_is_merely_odd_is_no_reason_to_refuse() -> None:
    cluster = Cluster()
    cluster.join("n0", hostname="My_Machine.LOCAL")
    assert cluster.state.nodes[NodeName("n0")].link is LinkState.CONNECTED


def test_an_address_that_no_peer_can_use_ends_the_gang_before_its_plan() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    cluster.prepare(task(1, 1, 0))
    cluster.prepare(task(1, 1, 1), address="10.0.0.1\n6.6.6.6 bank")
    assert not cluster.commands("n0", ArrangeTask)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.ARRANGE_FAILED, "n1")
    assert "\n" not in cause.text


def test_an_agent_speaks_only_for_its_own_tasks() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1))
    intruder = cluster.state.nodes[NodeName("n1")].session
    assert intruder is not None
    lie = TaskReport(task(1, 1, 0), TaskState.CLEANED, exit=ExitStatus(0))
    cluster.turn(s.ReportReceived(intruder, lie))
    assert cluster.shown(1) is JobState.PREPARING


def test_a_coordinator_that_starts_adopts_what_runs_and_counts_every_lease_anew() -> None:
    before = Cluster()
    before.join("n0")
    before.submit(spec(time_limit_s=100.0))
    (name,) = before.run_gang(1)
    after = Cluster(state=before.replayed(), mono=5.0)
    assert after.state.epoch == 2
    node = after.state.nodes[NodeName("n0")]
    assert (node.link, node.answered_at) == (LinkState.SUSPECT, 5.0)
    running = TaskReport(name, TaskState.STARTED, prepared=prepared(), running_s=60.0)
    after.join("n0", tasks=(running,))
    assert after.shown(1) is JobState.RUNNING
    assert not after.commands("n0", PrepareTask)
    # 40 s of the time limit are left, whatever the clocks of this process show.
    assert after.state.running[JobId(1)] == -55.0


def test_a_node_that_is_done_does_not_say_for_how_long_the_others_run() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, time_limit_s=100.0))
    _, name = cluster.run_gang(1)
    cluster.leave("n1")
    cluster.beat(90)
    well = ExitStatus(0)
    done = TaskReport(name, TaskState.CLEANED, prepared=prepared(), exit=well, running_s=5.0)
    cluster.join("n1", tasks=(done,))
    assert cluster.mono - cluster.state.running[JobId(1)] == 90.0


def test_a_task_that_its_own_agent_no_longer_has_is_lost() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.leave("n0")
    cluster.join("n0")
    attempt = cluster.job(1).attempts[0]
    assert attempt.tasks[0].state is TaskState.LOST
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.NODE_LOST


@pytest.mark.parametrize("process", ["first", "second"])
def test_a_hello_that_the_network_delivers_late_ends_no_task(process: str) -> None:
    """The agent gave up that connection, possibly with its process. It has connected again and
    begun a task since."""
    cluster = Cluster()
    cluster.join("n0", made_s=10.0, process="first")
    cluster.leave("n0")
    cluster.join("n0", made_s=30.0, process=process)
    session = cluster.node("n0").session
    cluster.submit(spec())
    cluster.run_gang(1)
    cluster.join("n0", made_s=20.0, process="first")
    assert cluster.shown(1) is JobState.RUNNING
    assert cluster.node("n0").session == session
    cluster.leave("n0")
    cluster.join("n0", made_s=20.0, process="first")
    assert cluster.shown(1) is JobState.RUNNING
    # A newer one counts.
    cluster.join("n0", made_s=40.0, process=process)
    assert cluster.job(1).attempts[0].tasks[0].state is TaskState.LOST


def test_a_node_whose_clock_went_back_connects_again_after_a_while() -> None:
    """For example a virtual machine that was restored from a snapshot of its memory."""
    cluster = Cluster()
    cluster.join("n0", made_s=5000.0)
    cluster.leave("n0")
    cluster.pass_time(OUTDATED_WITHIN_S - 1)
    cluster.join("n0", made_s=20.0)
    assert cluster.node("n0").session is None
    cluster.pass_time(2)
    cluster.join("n0", made_s=22.0)
    assert cluster.node("n0").session is not None


def test_a_node_that_has_rebooted_begins_with_another_clock() -> None:
    cluster = Cluster()
    cluster.join("n0", made_s=5000.0)
    cluster.leave("n0")
    cluster.join("n0", made_s=20.0, boot="next")
    assert cluster.node("n0").session is not None


def test_a_coordinator_that_starts_compares_no_hello_with_those_of_before() -> None:
    cluster = Cluster()
    cluster.join("n0", made_s=5000.0)
    cluster.turn(s.CoordinatorStarted(2, "cluster"))
    assert cluster.node("n0").session is None
    cluster.join("n0", made_s=20.0)
    assert cluster.node("n0").session is not None


def test_a_hello_of_a_release_that_does_not_say_when_it_was_made_counts() -> None:
    cluster = Cluster()
    cluster.join("n0", made_s=5000.0)
    cluster.leave("n0")
    cluster.join("n0")
    assert cluster.node("n0").session is not None


def test_facts_survive_the_journal() -> None:
    """Every fact of a job's course encodes, decodes to itself, and replays to the same state."""
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2))
    for name in cluster.run_gang(1):
        cluster.finish(name)
    durable = [x for x in cluster.facts if x.durability is not Durability.EPHEMERAL]
    decoder = msgspec.json.Decoder(f.Fact)
    copies = [decoder.decode(msgspec.json.encode(fact)) for fact in durable]
    assert copies == durable
    state = State()
    for fact in copies:
        apply(state, fact, 0.0)
    assert state.jobs.keys() == {JobId(1)}
    assert state.jobs[JobId(1)].cause == cluster.cause(1)


def test_a_coordinator_of_another_journal_leaves_an_agents_tasks_alone() -> None:
    """Started with an empty state folder it would else stop what it does not know."""
    cluster = Cluster()
    assert cluster.state.cluster == "here"
    running = TaskReport(task(3, 1, 0), TaskState.STARTED)
    hello = Hello(
        NodeName("n0"),
        "id",
        "boot-n0",
        "0.1.0",
        OBSERVED,
        (running,),
        1,
        cluster="there",
    )
    done = cluster.turn(s.HelloReceived(SessionId(1), hello, "127.0.0.1"))
    (refused,) = done.effects
    assert isinstance(refused, a.RefuseSession)
    assert refused.refused.code == "other_cluster"
    assert "start it with the original one" in refused.refused.text


def test_an_agent_without_tasks_may_change_its_cluster() -> None:
    cluster = Cluster()
    hello = Hello(
        NodeName("n0"),
        "id",
        "boot-n0",
        "0.1.0",
        OBSERVED,
        (),
        99,
        cluster="there",
    )
    cluster.turn(s.HelloReceived(SessionId(1), hello, "127.0.0.1"))
    (welcome,) = cluster.commands("n0", Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.cluster == "here"


def test_an_older_copy_of_the_journal_is_not_served() -> None:
    cluster = Cluster()
    hello = Hello(
        NodeName("n0"),
        "id",
        "boot-n0",
        "0.1.0",
        OBSERVED,
        (),
        99,
        cluster="here",
    )
    cluster.turn(s.HelloReceived(SessionId(1), hello, "127.0.0.1"))
    assert cluster.refused == ["old_epoch"]


def test_a_task_that_its_agent_ended_and_cannot_say_why_ends_its_attempt() -> None:
    """An agent that dies between a refusal and the word of it finds only what it has killed."""
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    cluster.prepare(task(1, 1, 0))
    assert cluster.job(1).attempts[0].phase is AttemptPhase.RUNNING, "its plan starts it"
    killed = ExitStatus(signal=9)
    cluster.clean(task(1, 1, 0), prepared=prepared(), exit=killed, stopped_by="kill")
    attempt = cluster.job(1).attempts[0]
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.TASK_VANISHED
    assert attempt.phase is AttemptPhase.CLOSED


def test_a_task_for_which_a_hello_has_no_room_is_not_lost() -> None:
    """It has ended, and its agent reports it after the welcome."""
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    (running,) = cluster.run_gang(1)
    cluster.leave("n0")
    cluster.sessions += 1
    who = (NodeName("n0"), "id-n0", "boot-n0", "0.1.0")
    hello = Hello(*who, NodeObservations(INVENTORY), more=True)
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), hello, "127.0.0.1"))
    assert cluster.shown(1) is JobState.RUNNING
    cluster.end(running, ExitStatus(0))
    cluster.clean(running, prepared=prepared(), exit=ExitStatus(0))
    assert cluster.shown(1) is JobState.SUCCEEDED

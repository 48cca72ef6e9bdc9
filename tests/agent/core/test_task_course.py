"""A task through the agent's core: commands and shim statuses in, actions out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.core import effects as a
from agent.core import inputs as s
from agent.core import shim_protocol
from agent.core.react import TMPDIR_CHARS_MAX
from agent.core.shim_protocol import (
    LEASE_GRACE_S,
    ShimExit,
    ShimHostfile,
    ShimKill,
    ShimLease,
    ShimPhase,
    ShimPrepare,
    ShimRank,
    ShimRefusal,
    ShimRelease,
    ShimSignal,
    ShimStart,
    ShimStatus,
    ShimStop,
    ShimUser,
)
from muster.protocol.ids import SessionId, TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.link.codec import FRAME_BYTES_MAX, ReportFrame, encode
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from orchestrator.core.model import leases
from tests.agent.core.playbook import (
    ARRANGE,
    PATHS,
    PREPARE,
    TASK,
    Agent,
    reports,
    sent_to_shim,
)


def test_a_task_goes_from_prepare_to_removal() -> None:
    agent = Agent()
    agent.connect()
    assert agent.hear(PREPARE) == [a.CreateTask(TASK, PREPARE)]
    agent.turn(s.TaskPlaced(TASK, PATHS, (20001,)))
    first = sent_to_shim(agent.shim(ShimPhase.NEW))
    assert isinstance(first[0], ShimLease)
    assert isinstance(first[1], ShimPrepare)
    assert (first[1].cwd, first[1].env) == ("/w", {"TMPDIR": "/t/scratch", "A": "1"})
    # The refusal of the shim, with the last lines of the program, comes before the timeout.
    assert (first[1].setup_timeout_s, first[1].bootstrap_timeout_s) == (295.0, 295.0)
    said = reports(agent.shim(ShimPhase.PREPARED))
    assert said[-1].state is TaskState.PREPARED
    assert said[-1].prepared is not None
    assert (said[-1].prepared.ports, said[-1].prepared.log_dir) == ((20001,), "/t/logs")
    planned = agent.hear(ARRANGE)
    assert a.SendToShim(TASK, ShimHostfile("n1 slots=1\n")) in planned
    assert reports(planned)[-1].state is TaskState.ARRANGED
    assert sent_to_shim(agent.hear(m.StartTask(TASK))) == [
        ShimStart(ARRANGE.argv, ARRANGE.env, 20001, 30.0, "SIGTERM")
    ]
    assert reports(agent.shim(ShimPhase.RUNNING, running_s=0.0))[-1].state is TaskState.STARTED
    done = agent.shim(ShimPhase.CLEANED, running_s=2.0, exit=ShimExit(0))
    # The fabric is not reported a second time.
    prepared = msgspec.structs.replace(said[-1].prepared, fabric=None)
    assert reports(done)[-1] == m.TaskReport(
        TASK, TaskState.CLEANED, prepared=prepared, exit=ExitStatus(0), running_s=2.0
    )
    assert sent_to_shim(agent.hear(m.ForgetTask(TASK))) == [ShimRelease()]
    assert a.RemoveTask(TASK) in agent.turn(s.LogsStored(TASK))
    agent.turn(s.TaskRemoved(TASK))
    assert not agent.state.tasks


def test_a_task_is_not_removed_before_its_log_is_stored_nor_before_its_end_is() -> None:
    agent = Agent()
    agent.running()
    agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    agent.turn(s.LogsStored(TASK))
    assert not any(isinstance(x, a.RemoveTask) for x in agent.effects)
    assert a.RemoveTask(TASK) in agent.hear(m.ForgetTask(TASK))


def test_a_task_that_wrote_nothing_waits_for_no_log() -> None:
    agent = Agent()
    agent.running()
    ended = ShimStatus(TASK, ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    said = reports(agent.turn(s.ShimReported(TASK, ended, no_output=True)))
    assert said[-1].no_output
    assert not any(isinstance(x, a.RemoveTask) for x in agent.effects)
    assert a.RemoveTask(TASK) in agent.hear(m.ForgetTask(TASK))


def test_repeated_commands_do_nothing_twice() -> None:
    agent = Agent()
    agent.at_gate()
    assert not [x for x in agent.hear(PREPARE) if isinstance(x, a.CreateTask)]
    agent.hear(m.StartTask(TASK))
    assert not sent_to_shim(agent.hear(m.StartTask(TASK)))
    assert not sent_to_shim(agent.hear(ARRANGE))


def test_the_gate_stays_shut_without_a_plan() -> None:
    agent = Agent()
    agent.connect()
    agent.hear(PREPARE)
    agent.turn(s.TaskPlaced(TASK, PATHS, (20001,)))
    agent.shim(ShimPhase.PREPARED)
    assert not sent_to_shim(agent.hear(m.StartTask(TASK)))


def test_a_stop_that_comes_first_buries_the_task() -> None:
    agent = Agent()
    agent.connect()
    stopped = agent.hear(m.StopTask(TASK))
    assert reports(stopped) == [m.TaskReport(TASK, TaskState.CLEANED, stop_stored=True)]
    late = agent.hear(PREPARE)
    assert not [x for x in late if isinstance(x, a.CreateTask)]
    assert reports(late) == [m.TaskReport(TASK, TaskState.CLEANED, stop_stored=True)]


def test_a_stop_before_the_shim_speaks_reaches_it_then() -> None:
    agent = Agent()
    agent.connect()
    agent.hear(PREPARE)
    assert not sent_to_shim(agent.hear(m.StopTask(TASK, "SIGINT", 3.0)))
    agent.turn(s.TaskPlaced(TASK, PATHS, ()))
    assert sent_to_shim(agent.shim(ShimPhase.NEW)) == [ShimStop("SIGINT", 3.0)]
    assert not sent_to_shim(agent.hear(m.StartTask(TASK)))


def test_a_grace_that_is_cut_reaches_a_task_that_is_ending() -> None:
    agent = Agent()
    agent.running()
    assert sent_to_shim(agent.hear(m.StopTask(TASK, "SIGTERM", 600.0))) == [
        ShimStop("SIGTERM", 600.0)
    ]
    assert sent_to_shim(agent.shim(ShimPhase.STOPPING, running_s=1.0)) == []
    assert sent_to_shim(agent.hear(m.StopTask(TASK, "SIGTERM", 5.0))) == [ShimStop("SIGTERM", 5.0)]


def test_force_kills() -> None:
    agent = Agent()
    agent.running()
    agent.hear(m.StopTask(TASK))
    assert sent_to_shim(agent.hear(m.StopTask(TASK, force=True))) == [ShimKill()]


def test_a_refusal_is_passed_on_with_whose_fault_it_is() -> None:
    agent = Agent()
    agent.connect()
    agent.hear(PREPARE)
    said = reports(agent.shim(ShimPhase.REFUSED, refusal=ShimRefusal("no_folder", "no /w")))
    assert said[-1].refusal == m.Refusal("no_folder", "no /w", node_fault=False)
    failed = reports(agent.turn(s.ShimFailed(TaskId("1.1.0"), "fork: no memory")))
    assert failed[-1].refusal is not None


def test_a_shim_that_cannot_be_made_is_the_nodes_fault_and_leaves_nothing() -> None:
    agent = Agent()
    agent.connect()
    agent.hear(PREPARE)
    said = reports(agent.turn(s.ShimFailed(TASK, "fork: no memory")))
    assert said[-1].state is TaskState.CLEANED
    assert said[-1].refusal == m.Refusal("spawn_failed", "fork: no memory", node_fault=True)
    assert said[-1].no_output
    assert a.RemoveTask(TASK) in agent.hear(m.ForgetTask(TASK))


def test_tasks_that_are_not_to_be_kept_are_killed() -> None:
    agent = Agent()
    status = ShimStatus(TASK, ShimPhase.RUNNING, running_s=9.0)
    agent.turn(s.TaskFound(TASK, status, PATHS))
    assert ShimKill() in sent_to_shim(agent.connect())


def test_a_task_of_an_earlier_life_is_reported_and_goes_on() -> None:
    agent = Agent()
    status = ShimStatus(TASK, ShimPhase.RUNNING, running_s=9.0)
    agent.turn(s.TaskFound(TASK, status, PATHS, (20001,)))
    agent.mono += 2.0
    hello = agent.turn(s.LinkUp())[0]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    assert hello.report.tasks[0].state is TaskState.STARTED
    assert hello.report.tasks[0].running_s == 11.0
    agent.hear(m.Welcome(1, SessionId(1), 5.0, "0.1.0", "c1", (TASK,)))
    assert ShimKill() not in sent_to_shim(agent.effects)


RUNS = ShimStatus(TASK, ShimPhase.RUNNING, running_s=9.0)


@pytest.mark.parametrize("restarted", [False, True])
def test_leases_are_counted_from_the_moment_of_asking(restarted: bool) -> None:
    agent = Agent()
    if restarted:
        agent.turn(s.TaskFound(TASK, RUNS, PATHS, lease_s=300.0))
    else:
        agent.running()
    agent.turn(s.LinkDown())
    agent.turn(s.LinkUp())
    dialled_at = agent.mono
    agent.mono += 4.0
    welcome = m.Welcome(1, SessionId(1), 5.0, "0.1.0", keep=(TASK,))
    assert ShimLease(296.0, until=dialled_at + 300.0) in sent_to_shim(agent.hear(welcome))
    agent.mono = 130.0
    assert sent_to_shim(agent.hear(m.HeartbeatAck(120.0))) == [ShimLease(290.0, until=420.0)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_without_a_lease_has_no_deadline(restarted: bool) -> None:
    agent = Agent()
    if restarted:
        agent.turn(s.TaskFound(TASK, RUNS, PATHS))
        agent.connect(TASK)
    else:
        agent.connect()
        agent.hear(msgspec.structs.replace(PREPARE, lease_s=None))
        agent.turn(s.TaskPlaced(TASK, PATHS, (20001,)))
        agent.shim(ShimPhase.NEW)
        agent.shim(ShimPhase.RUNNING, running_s=0.0)
    agent.hear(m.HeartbeatAck(agent.mono))
    assert not [x for x in sent_to_shim(agent.effects) if isinstance(x, ShimLease)]


def test_a_silent_coordinator_is_dialled_anew() -> None:
    agent = Agent()
    agent.connect()
    agent.mono += 16.0
    assert any(isinstance(x, a.CloseLink) for x in agent.turn(s.TimerFired(a.Timer.HEARTBEAT)))
    assert not agent.state.linked


def test_an_older_coordinator_is_not_served() -> None:
    agent = Agent()
    agent.connect(epoch=5)
    agent.turn(s.LinkDown())
    closed = [x for x in agent.connect(epoch=4) if isinstance(x, a.CloseLink)]
    assert closed
    assert closed[0].refused


def test_a_status_that_comes_late_changes_nothing() -> None:
    agent = Agent()
    agent.running()
    agent.shim(ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0))
    assert not agent.shim(ShimPhase.RUNNING, running_s=0.5)


def prepared_with(placed: s.TaskPlaced, **more: Any) -> dict[str, Any]:
    """Return the command to prepare for a task with these folders."""
    agent = Agent()
    agent.connect()
    agent.hear(msgspec.structs.replace(PREPARE, **more))
    agent.turn(placed)
    prepare: dict[str, Any] = msgspec.to_builtins(sent_to_shim(agent.shim(ShimPhase.NEW))[1])
    return prepare


def test_the_job_runs_as_the_user_whom_its_folders_were_made_for() -> None:
    placed = s.TaskPlaced(TASK, PATHS, (), user=ShimUser("trainer", 1001))
    assert prepared_with(placed)["user"] == {"name": "trainer", "uid": 1001}
    assert prepared_with(s.TaskPlaced(TASK, PATHS, ()))["user"] is None


def test_temporary_files_go_with_the_task() -> None:
    placed = s.TaskPlaced(TASK, PATHS, ())
    assert prepared_with(placed)["env"] == {"TMPDIR": "/t/scratch", "A": "1"}
    assert prepared_with(placed, env={"TMPDIR": "/mine"})["env"] == {"TMPDIR": "/mine"}
    # Sockets in a longer one would have too long names.
    deep = msgspec.structs.replace(PATHS, scratch="/" + "t" * TMPDIR_CHARS_MAX)
    assert prepared_with(s.TaskPlaced(TASK, deep, ()))["env"] == {"A": "1"}


def test_a_lease_says_how_long_the_job_has_when_it_is_over() -> None:
    """The coordinator counts on it."""
    sent = msgspec.json.decode(shim_protocol.encode(ShimLease(300.0, until=420.0)))
    assert sent == {"cmd": "lease", "ttl_s": 300.0, "grace_s": LEASE_GRACE_S, "until": 420.0}
    assert leases.KILL_S == LEASE_GRACE_S


def test_the_cluster_id_is_stored_before_any_task() -> None:
    agent = Agent()
    assert agent.connect()[0] == a.KeepCluster("c1")
    agent.turn(s.LinkDown())
    hello = agent.turn(s.LinkUp())[0]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    assert hello.report.cluster == "c1"
    assert a.KeepCluster("c1") not in agent.hear(m.Welcome(1, SessionId(2), 5.0, "0.1.0", "c1"))


def test_a_coordinator_that_speaks_no_protocol_of_ours_is_left_with_what_to_upgrade() -> None:
    for protocol, who in ((m.PROTOCOL_MAX + 1, "agent"), (m.PROTOCOL_MIN - 1, "coordinator")):
        agent = Agent()
        agent.turn(s.LinkUp())
        welcome = m.Welcome(1, SessionId(2), 5.0, "9.0.0", "c1", protocol=protocol)
        (hung_up,) = agent.hear(welcome)
        assert isinstance(hung_up, a.CloseLink)
        assert hung_up.refused
        assert hung_up.why.endswith(f"upgrade the {who}")
        assert not agent.state.welcomed


def test_a_node_full_of_failed_ranks_still_fits_a_frame() -> None:
    agent = Agent()
    agent.running()
    ranks = tuple(ShimRank(n, n, exit=ShimExit(7), error="\x1b" * 4096) for n in range(1000))
    agent.shim(ShimPhase.STOPPING, running_s=1.0, ranks=ranks, first_failed=17)
    agent.turn(s.LinkDown())
    hello = agent.turn(s.LinkUp())[0]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    assert len(encode(ReportFrame(1, hello.report))) < 200_000
    assert [r.rank for r in hello.report.tasks[0].ranks if r.error] == [0, 1, 2, 17]


def test_a_node_full_of_tasks_that_failed_still_says_hello() -> None:
    """Their logs cannot be stored for long, say: each is kept until they are."""
    agent = Agent()
    agent.running()
    agent.shim(ShimPhase.RUNNING, running_s=1.0, ranks=(ShimRank(0, 0, pid=7),))
    rank = ShimRank(0, 0, exit=ShimExit(7), error="\x1b" * 4096, stderr_tail="x" * 4096)
    for number in range(2, 1000):
        task = TaskId(f"{number}.1.0")
        ended = ShimStatus(
            task, ShimPhase.CLEANED, exit=ShimExit(1), ranks=(rank,), launcher_said="x" * 4096
        )
        agent.turn(s.TaskFound(task, ended, PATHS, (20001,), NodeFabric(), ()))
    agent.turn(s.LinkDown())
    hello = agent.turn(s.LinkUp())[0]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    assert len(encode(ReportFrame(1, hello.report))) < FRAME_BYTES_MAX
    running, *others = hello.report.tasks
    assert (running.state, len(running.ranks)) == (TaskState.STARTED, 1)
    assert running.prepared is not None
    assert [said.task for said in others] == [f"{number}.1.0" for number in range(2, 1000)]
    assert {said.state for said in others} == {TaskState.EXITED}
    assert {said.exit for said in others} == {ExitStatus(1)}
    # The hello keeps the details of the newest tasks, which the coordinator is least likely to
    # have.
    assert others[-1].ranks[0].error == "\x1b" * 4096
    assert others[0].ranks == ()


def test_a_hello_leaves_ended_tasks_out_that_have_no_room() -> None:
    """The disk of the logs may be full for hours, and then no ended task can be forgotten."""
    agent = Agent()
    agent.running()
    agent.shim(ShimPhase.RUNNING, running_s=1.0)
    for number in range(2, 12_000):
        task = TaskId(f"{number}.1.0")
        ended = ShimStatus(task, ShimPhase.CLEANED, exit=ShimExit(0))
        agent.turn(s.TaskFound(task, ended, PATHS, (20001,), NodeFabric(), ()))
    agent.turn(s.LinkDown())
    hello = agent.turn(s.LinkUp())[0]
    assert isinstance(hello, a.SendReport)
    assert isinstance(hello.report, m.Hello)
    assert len(encode(ReportFrame(1, hello.report))) < FRAME_BYTES_MAX
    assert hello.report.more
    tasks = [said.task for said in hello.report.tasks]
    assert (tasks[0], tasks[-1]) == (TASK, "11999.1.0")
    assert 2000 < len(tasks) < 12_000


def test_a_signal_goes_to_what_runs_and_not_to_what_is_to_end() -> None:
    warn = m.SignalTask(TASK, "SIGUSR1", 1)
    agent = Agent()
    agent.running()
    assert sent_to_shim(agent.hear(warn)) == [ShimSignal("SIGUSR1", 1)]
    some = m.SignalTask(TASK, "SIGUSR2", 2, ranks=(1,), late=False)
    assert sent_to_shim(agent.hear(some)) == [ShimSignal("SIGUSR2", 2, (1,), late=False)]
    agent.hear(m.StopTask(TASK))
    assert sent_to_shim(agent.hear(warn)) == []
    stranger = Agent()
    stranger.connect()
    gone = m.TaskReport(TASK, TaskState.CLEANED, stop_stored=True)
    assert reports(stranger.hear(warn)) == [gone]


def test_the_ranks_that_failed_first_are_the_ones_that_are_quoted() -> None:
    agent = Agent()
    agent.running()
    ranks = tuple(
        ShimRank(n, n, exit=ShimExit(1, at_s=10.0 - n), error=f"error {n}", stopped=n == 7)
        for n in range(8)
    )
    said = reports(agent.shim(ShimPhase.RUNNING, running_s=11.0, ranks=ranks, first_failed=6))[-1]
    assert [r.rank for r in said.ranks if r.error] == [3, 4, 5, 6]
    assert [r.at_s for r in said.ranks][:2] == [10.0, 9.0]
    assert [r.stopped for r in said.ranks] == [False] * 7 + [True]

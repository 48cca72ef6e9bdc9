"""Hardware that fails: whose attempt ends, what becomes of the node, and what is only shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import (
    Hello,
    NodeObservations,
    RankReport,
    Refusal,
    TaskReport,
)
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.hardware_events import Grade, HardwareEvent
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.invariants import check
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.effects import Declined
from orchestrator.core.facts.jobs import StopRequested
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.node import AdminState
from orchestrator.core.model.registrations import HARDWARE_EVERY_S
from orchestrator.core.views.display import job_view, node_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task
from tests.orchestrator.core.scheduling.test_gpus import gpu, join, part, uuid, where

TEXT = "GPU 0000:10:00.0: Xid 79, the GPU has fallen off the bus"


def event(number: int = 1, **more: Any) -> HardwareEvent:
    fields: dict[str, Any] = {
        "boot": "boot",
        "code": "xid 79",
        "grade": Grade.CRITICAL,
        "text": TEXT,
        "pci": "0000:10:00.0",
        "uuid": uuid(0),
        **more,
    }
    return HardwareEvent(number=number, **fields)


def report(cluster: Cluster, name: str, *events: HardwareEvent) -> None:
    cluster.observe(name, hardware=events)


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes of eight GPUs; on one, two jobs that run on four of its own each."""
    cluster = Cluster()
    join(cluster, "a")
    join(cluster, "b")
    for number in (1, 2):
        cluster.submit(part(4, retry=Retry(infra=1), placement={"include": ["a"]}))
        cluster.run_gang(number)
    assert uuid(0) in where(cluster, 1)["a"]
    assert uuid(4) in where(cluster, 2)["a"]
    return cluster


def cause(cluster: Cluster, job: int) -> Any:
    return cluster.job(job).attempts[-1].cause


def steps(cluster: Cluster, job: int) -> list[str]:
    return [step.text for step in job_view(cluster.state, cluster.job(job), cluster.now).timeline]


def test_the_attempt_that_has_the_gpu_fails_at_once_and_the_node_is_drained(
    cluster: Cluster,
) -> None:
    report(cluster, "a", event())
    found = cause(cluster, 1)
    assert (found.code, found.text, found.node) == (
        CauseCode.HARDWARE,
        f"rank 0 on a: {TEXT}",
        "a",
    )
    assert (found.exit_code, found.node_fault) == (122, True)
    node = cluster.node("a")
    assert node.admin is AdminState.DRAINING
    assert node.drain is not None
    assert (node.drain.user, node.drain.reason) == ("muster", TEXT)
    # The other one has none of it.
    assert cluster.job(2).attempts[-1].phase is AttemptPhase.RUNNING
    assert f"a: {TEXT}" in steps(cluster, 1)


@pytest.mark.parametrize(
    ("gpus", "at", "rank"),
    [(4, 2, 6), (None, 5, 13), (2, 0, None)],
    ids=("a part", "whole nodes", "two GPUs for eight ranks"),
)
def test_the_rank_that_has_the_gpu_is_named(gpus: int | None, at: int, rank: int | None) -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        join(cluster, name)
    many = 8 if gpus == 2 else gpus or 8
    cluster.submit(part(gpus, nodes=2, nproc_per_node=many))
    cluster.run_gang(1)
    second = cluster.job(1).attempts[0].tasks[1]
    mine = second.gpus or tuple(uuid(number, second.node) for number in range(8))
    failed = event(uuid=mine[at], pci=f"0000:1{at}:00.0")
    report(cluster, second.node, failed)
    found = cause(cluster, 1)
    assert (found.rank, found.node) == (rank, second.node)
    whose = "" if rank is None else f"rank {rank} on "
    assert found.text == f"{whose}{second.node}: {TEXT}"


def test_nvml_counters_are_as_critical_as_kernel_lines(cluster: Cluster) -> None:
    report(cluster, "a", event(code="nvml ecc"))
    assert cause(cluster, 1).code is CauseCode.HARDWARE
    assert not cluster.node("a").in_service
    assert cluster.job(2).attempts[-1].phase is AttemptPhase.RUNNING


def test_it_is_tried_again_elsewhere(cluster: Cluster) -> None:
    cluster.submit(part(4, retry=Retry(infra=1)))
    cluster.run_gang(3)
    assert list(where(cluster, 3)) == ["b"]
    report(cluster, "b", event(uuid=where(cluster, 3)["b"][0]))
    cluster.clean(task(3, 1, 0), exit=ExitStatus(signal=15), stopped_by="stop")
    assert cluster.job(3).infra_used == 1
    assert cluster.job(3).avoid == {"b"}


def test_every_critical_one_drains_and_no_other_does(cluster: Cluster) -> None:
    report(cluster, "a", event(1, grade=Grade.SHOWN, code="xid 31", text="GPU: Xid 31"))
    report(cluster, "a", event(2, grade=Grade.NOTE, code="xid 63", text="GPU: Xid 63"))
    assert cluster.node("a").in_service
    assert cause(cluster, 1) is None
    view = node_view(cluster.node("a"), cluster.now)
    assert view.warnings == ("GPU: Xid 63",)
    assert [(it.grade, it.text) for it in view.hardware] == [
        ("shown", "GPU: Xid 31"),
        ("note", "GPU: Xid 63"),
    ]
    timeline = steps(cluster, 1)
    assert "a: GPU: Xid 31" in timeline
    report(cluster, "a", event(3))
    assert not cluster.node("a").in_service


def test_a_gpu_that_no_job_has_only_drains_its_node(cluster: Cluster) -> None:
    report(cluster, "b", event(uuid=uuid(3, "b")))
    assert cluster.node("b").admin is AdminState.DRAINED
    assert cause(cluster, 1) is None


def test_a_job_that_has_the_whole_node_has_each_of_its_gpus(cluster: Cluster) -> None:
    cluster.submit(spec(placement={"include": ["b"]}))
    cluster.run_gang(3)
    report(cluster, "b", event(uuid="", pci="0000:99:00.0"))
    assert cause(cluster, 3).code is CauseCode.HARDWARE


def test_a_gpu_without_a_uuid_is_found_by_its_address(cluster: Cluster) -> None:
    report(cluster, "a", event(uuid="", pci=gpu(5, "a").pci))
    assert cause(cluster, 1) is None
    assert cause(cluster, 2).code is CauseCode.HARDWARE


def test_a_gpu_that_has_gone_first_is_that_of_the_job_that_misses_one(cluster: Cluster) -> None:
    left = tuple(gpu(at, "a") for at in range(8) if at != 5)
    cluster.observe("a", devices=left)
    report(cluster, "a", event(uuid="", pci="0000:99:00.0"))
    assert cause(cluster, 1) is None
    assert cause(cluster, 2).code is CauseCode.HARDWARE


def test_a_rank_that_dies_of_it_first_is_not_to_blame(cluster: Cluster) -> None:
    how = ExitStatus(1)
    ranks = (RankReport(0, exit=how, error="RuntimeError: CUDA error: unspecified launch failure"),)
    cluster.report(task(1, 1, 0), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)
    assert cause(cluster, 1) is None
    report(cluster, "a", event())
    assert cause(cluster, 1).code is CauseCode.HARDWARE


def test_an_agent_that_is_back_may_report_both_at_once(cluster: Cluster) -> None:
    """Either ends the job, which is ended once."""
    how = ExitStatus(1)
    ranks = (RankReport(0, exit=how, error="ValueError: no such split"),)
    first = TaskReport(task(1, 1, 0), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)
    second = TaskReport(task(2, 1, 0), TaskState.STARTED, prepared=prepared(), listening=True)
    devices = cluster.node("a").inventory.devices
    hello(cluster, "a", devices, event(), tasks=(first, second))
    assert cause(cluster, 1).code is CauseCode.RANK_FAILED
    assert not cluster.node("a").in_service


def test_a_job_may_lose_its_gpu_as_it_begins(cluster: Cluster) -> None:
    cluster.submit(part(4, placement={"include": ["b"]}, retry=Retry(infra=0)))
    (had, *_) = where(cluster, 3)["b"]
    ready = TaskReport(task(3, 1, 0), TaskState.PREPARED, prepared=prepared())
    devices = cluster.node("b").inventory.devices
    hello(cluster, "b", devices, event(uuid=had, pci=gpu(0, "b").pci), tasks=(ready,))
    assert cause(cluster, 3).code is CauseCode.HARDWARE
    assert cluster.job(3).attempts[0].phase is AttemptPhase.STOPPING
    assert not cluster.node("b").in_service


def test_two_gpus_of_a_gang_may_fail_at_once(cluster: Cluster) -> None:
    report(cluster, "a", event(1), event(2, pci="0000:11:00.0", uuid=uuid(1)))
    assert cause(cluster, 1).code is CauseCode.HARDWARE
    assert len(cluster.node("a").hardware) == 2


def test_a_rank_error_decides_if_the_kernel_log_has_nothing(cluster: Cluster) -> None:
    how = ExitStatus(1)
    ranks = (RankReport(0, exit=how, error="RuntimeError: CUDA error: unspecified launch failure"),)
    cluster.report(task(1, 1, 0), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)
    cluster.beat(cluster.limits.blame_wait_s)
    assert cause(cluster, 1).code is CauseCode.RANK_FAILED


def test_known_events_are_not_news_after_resume_restart_or_reconnection(
    cluster: Cluster,
) -> None:
    report(cluster, "a", event(7))
    for number in (1, 2):
        cluster.finish(task(number, 1, 0))
    devices = cluster.node("a").inventory.devices
    cluster.resume("a", check=False)
    assert cluster.node("a").in_service
    cluster.leave("a")
    again = Cluster(state=cluster.state)
    hello(again, "a", devices, event(7))
    assert again.node("a").in_service
    report(again, "a", event(6), event(7))
    assert again.node("a").in_service
    report(again, "a", event(8))
    assert not again.node("a").in_service


def test_the_record_outlives_the_job(cluster: Cluster) -> None:
    """A job that has ended goes to the archive, and takes its own records with it."""
    report(cluster, "a", event())
    (kept,) = [fact for fact in cluster.facts if isinstance(fact, sf.HardwareReported)]
    assert kept.attempts == ((1, 1),)
    later = Cluster()
    join(later, "a")
    apply(later.state, kept, 0.0)
    assert [it for _, it in later.node("a").hardware] == [event()]


@pytest.mark.parametrize("grade", [Grade.SHOWN, Grade.CRITICAL])
def test_the_job_has_it_in_its_own_records(cluster: Cluster, grade: Grade) -> None:
    """The archive has none of the node's records."""
    report(cluster, "a", event(grade=grade))
    cluster.finish(task(1, 1, 0))
    facts = [fact for fact in cluster.facts if getattr(fact, "job", None) == 1]
    again = replay_job((fact, cluster.now.wall) for fact in facts)
    assert f"a: {TEXT}" in [text for _, text in again.attempts[0].changes.entries()]
    assert again.attempts[0].changes == cluster.job(1).attempts[0].changes


def test_another_boot_counts_anew(cluster: Cluster) -> None:
    report(cluster, "b", event(500))
    cluster.resume("b", check=False)
    report(cluster, "b", event(3, boot="another"))
    assert not cluster.node("b").in_service


def hello(
    cluster: Cluster,
    name: str,
    devices: tuple[GpuDevice, ...],
    *events: HardwareEvent,
    tasks: tuple[TaskReport, ...] = (),
) -> None:
    cluster.sessions += 100
    node = cluster.node(name)
    said = Hello(
        NodeName(name),
        node.agent_id,
        node.boot_id,
        "0.1.0",
        NodeObservations(msgspec.structs.replace(node.inventory, devices=devices), hardware=events),
        tasks,
    )
    cluster.turn(s.HelloReceived(type(cluster.sessions)(cluster.sessions), said, "127.0.0.1"))  # type: ignore[arg-type]


def test_resume_looks_whether_the_gpu_is_there(cluster: Cluster) -> None:
    report(cluster, "b", event(uuid=uuid(0, "b"), pci=gpu(0, "b").pci))
    rest = tuple(gpu(at, "b") for at in range(1, 8))
    cluster.observe("b", devices=rest)
    declined = cluster.resume("b")
    assert isinstance(declined, Declined)
    assert "it has gone" in declined.text
    everything = tuple(gpu(at, "b") for at in range(8))
    cluster.observe("b", devices=everything)
    cluster.resume("b")
    assert cluster.node("b").in_service
    assert cluster.node("b").hardware == ()


def test_a_drain_by_a_person_stays_theirs(cluster: Cluster) -> None:
    cluster.drain("a")
    report(cluster, "a", event())
    drain = cluster.node("a").drain
    assert drain is not None
    assert drain.user == "ana"
    assert cause(cluster, 1).code is CauseCode.HARDWARE


def test_a_job_that_is_being_made_ready_is_rolled_back(cluster: Cluster) -> None:
    cluster.submit(part(2, retry=Retry(infra=0)))
    assert cluster.job(3).current is not None
    (node,) = where(cluster, 3)
    report(cluster, node, event(uuid=where(cluster, 3)[node][0]))
    assert cause(cluster, 3).code is CauseCode.HARDWARE


def test_a_kill_for_memory_is_a_note_of_its_attempt(cluster: Cluster) -> None:
    text = "the memory of its cgroup ran out: the kernel killed python (process 9)"
    oom = event(code="oom", grade=Grade.SHOWN, text=text, uuid="", pci="", task=TaskId("2.1.0"))
    report(cluster, "a", oom)
    timeline = steps(cluster, 2)
    assert f"a: {text}" in timeline
    assert cluster.node("a").in_service


def test_the_kernels_words_are_the_cause_of_a_rank_killed_for_memory(cluster: Cluster) -> None:
    how = ExitStatus(signal=9)
    said = "the kernel killed python (process 9), which had 10.5 GiB"
    ranks = (RankReport(0, exit=how, oom=True, oom_said=said),)
    cluster.report(task(1, 1, 0), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)
    assert said in cause(cluster, 1).text
    cluster.clean(task(1, 1, 0), exit=how, ranks=ranks)
    assert cluster.shown(1) is JobState.FAILED


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "x" * 301},
        {"text": "two\nlines"},
        {"uuid": "\x1b[31m"},
        {"pci": "../../etc"},
        {"number": -1},
    ],
)
def test_text_that_cannot_be_shown_is_not_kept(cluster: Cluster, wrong: dict[str, Any]) -> None:
    report(cluster, "a", event(**{"number": 1, **wrong}))
    assert cluster.node("a").hardware == ()


def test_it_is_on_disk_before_anything_is_done_because_of_it(cluster: Cluster) -> None:
    report(cluster, "a", event())
    kept = [fact for fact in cluster.facts if isinstance(fact, sf.HardwareReported)]
    assert [fact.durability for fact in kept] == [Durability.SYNC]


def test_a_storm_keeps_the_last(cluster: Cluster) -> None:
    for number in range(100):
        report(cluster, "b", event(number, grade=Grade.SHOWN))
    assert [it.number for _, it in cluster.node("b").hardware] == list(range(84, 100))


def hears(cluster: Cluster, *tasks: TaskReport, **more: Any) -> None:
    """Reconnect the first node, which reports a GPU that failed."""
    node = cluster.node("a")
    cluster.leave("a")
    cluster.sessions += 1
    who = (node.name, node.agent_id, node.boot_id, node.version)
    observed = NodeObservations(node.inventory, hardware=(event(**more),))
    hello = Hello(*who, observed, tasks, protocol_max=5)
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), hello, "127.0.0.1"))


def alone() -> tuple[Cluster, TaskId]:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(8, retry=Retry(infra=0)))
    return cluster, task(1, 1, 0)


def test_a_gang_that_is_ready_and_loses_its_gpu_in_one_breath_ends_of_it() -> None:
    cluster, mine = alone()
    hears(cluster, TaskReport(mine, TaskState.PREPARED, prepared=prepared()))
    (attempt,) = cluster.job(1).attempts
    assert attempt.phase is AttemptPhase.STOPPING
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.HARDWARE


def test_a_job_that_succeeded_before_its_gpu_failed_has_succeeded() -> None:
    cluster, mine = alone()
    cluster.run_gang(1)
    ended: dict[str, Any] = {"prepared": prepared(), "exit": ExitStatus(0)}
    hears(
        cluster,
        TaskReport(mine, TaskState.EXITED, ranks=(RankReport(0, exit=ExitStatus(0)),), **ended),
    )
    cluster.clean(mine, **ended)
    assert cluster.shown(1) is JobState.SUCCEEDED


def test_a_second_stop_of_a_gang_in_the_same_turn_is_void() -> None:
    cluster, mine = alone()
    refusal = Refusal("no_space", "its disk is full", node_fault=True)
    before = len(cluster.facts)
    hears(cluster, TaskReport(mine, TaskState.ASSIGNED, refusal=refusal))
    ends = [fact for fact in cluster.facts[before:] if isinstance(fact, StopRequested)]
    assert len(ends) == 1
    assert ends[0].cause == cause(cluster, 1)


def recorded(cluster: Cluster) -> list[sf.HardwareReported]:
    return [fact for fact in cluster.facts if isinstance(fact, sf.HardwareReported)]


def noted(first: int, count: int, **more: Any) -> list[HardwareEvent]:
    fields = {"grade": Grade.NOTE, "code": "xid 63", **more}
    numbers = range(first, first + count)
    return [event(number, text=f"event {number}", **fields) for number in numbers]


def test_an_agent_that_lies_cannot_fill_the_journal(cluster: Cluster) -> None:
    for first in range(1, 6401, 64):
        report(cluster, "b", *noted(first, 64))
    numbers = [fact.event.number for fact in recorded(cluster)]
    assert numbers == list(range(33, 65)), "the newest of the first report"
    (*_, warning) = node_view(cluster.node("b"), cluster.now).warnings
    assert warning == (
        "6368 events of its kernel and GPUs are not recorded: they come too often, see its own log "
        "(journalctl -k)"
    )
    cluster.beat(2 * HARDWARE_EVERY_S)
    report(cluster, "b", *noted(7001, 4))
    assert [fact.event.number for fact in recorded(cluster)][32:] == [7003, 7004]
    report(cluster, "b", *noted(7001, 4))
    assert cluster.node("b").hardware_skipped == 6370, "what was heard before is no news"
    report(cluster, "a", *noted(1, 3))
    assert len(recorded(cluster)) == 37, "each node has its own rate"
    cluster.resume("b", check=False)
    assert check(cluster.state) == []


def test_kills_for_memory_leave_room_for_hardware(cluster: Cluster) -> None:
    for first in range(1, 641, 64):
        report(cluster, "b", *noted(first, 64, code="oom", grade=Grade.SHOWN, uuid="", pci=""))
    report(cluster, "b", *noted(1000, 2))
    assert [fact.event.number for fact in recorded(cluster)] == [*range(33, 65), 1000, 1001]


@pytest.mark.parametrize("disk_full", ["", "the disk is full"])
def test_a_critical_event_that_ends_something_is_always_recorded(
    cluster: Cluster, disk_full: str
) -> None:
    for first in (1, 65):
        report(cluster, "a", *noted(first, 64))
    cluster.state.disk_full = disk_full
    before = len(recorded(cluster))
    report(cluster, "a", event(200, uuid=uuid(0)))
    assert cause(cluster, 1).code is CauseCode.HARDWARE
    assert not cluster.node("a").in_service
    report(cluster, "a", event(201, uuid=uuid(4)))
    assert cause(cluster, 2).code is CauseCode.HARDWARE
    assert len(recorded(cluster)) == before + 2
    for number in range(300, 400):
        report(cluster, "a", event(number, uuid=uuid(0)))
    assert len(recorded(cluster)) == before + 2, "those change nothing any more"


def test_nothing_else_is_recorded_while_the_disk_is_full(cluster: Cluster) -> None:
    cluster.state.disk_full = "the disk is full"
    report(cluster, "b", *noted(1, 3))
    assert recorded(cluster) == []
    assert cluster.node("b").hardware_skipped == 3
    assert [it.number for _, it in cluster.node("b").hardware] == [1, 2, 3], "they are shown"

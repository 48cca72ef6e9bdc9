"""The owner: on disk first, acted on after, and never again after a failed commit."""

import asyncio
from pathlib import Path
from typing import Any, Never

import msgspec
import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Heartbeat, NodeChanges
from muster.protocol.observations.disks import DiskHealth
from orchestrator.core.engine import guarded_turn, turn
from orchestrator.core.engine.guarded_turn import TurnFailedError
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts.effects import Declined, RequestId, Submitted
from orchestrator.core.facts.inputs import (
    CancelReceived,
    ReportReceived,
    SubmitReceived,
    WebhookAttempted,
)
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State
from orchestrator.core.scheduling.backfill import schedule
from orchestrator.journal.errors import JournalWriteError
from orchestrator.journal.journal import Journal
from orchestrator.shell import coordinator as coordinator_module
from orchestrator.shell import job_archive as archive_module
from orchestrator.shell.coordinator import CoordinatorStoppedError
from orchestrator.shell.replay import replay
from tests.orchestrator.shell.owner import S1, SPEC, Rig, with_owner


def test_nothing_is_done_before_it_is_on_disk(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        assert rig.coordinator.state.jobs, "decided already"
        assert not submitting.done()
        reader = asyncio.create_task(rig.coordinator.durable_state())
        await asyncio.sleep(0)
        assert not reader.done(), "nobody reads what is not on disk"
        assert rig.happened == ["commit begins"]
        rig.journal.gate.set()
        assert await submitting == Submitted(JobId(1), created=True)
        assert await reader is rig.coordinator.state
        assert rig.happened == ["commit begins", "commit ends", "PrepareTask"]

    with_owner(tmp_path, main)


def test_a_beat_is_a_turn_of_the_owner(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.coordinator.next_turn()  # with nothing to do
        await rig.join()
        submitting = await rig.deciding()
        beat = asyncio.create_task(rig.coordinator.next_turn())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not beat.done(), "an owner that hangs has no pulse"
        rig.journal.gate.set()
        await beat
        await submitting

    rig = with_owner(tmp_path, main)
    with pytest.raises(CoordinatorStoppedError):
        asyncio.run(rig.coordinator.next_turn())


def test_facts_about_connections_are_never_written(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        await rig.coordinator.put(ReportReceived(S1, Heartbeat(1.0)))
        await rig.happened.until("HeartbeatAck")
        written = [type(fact) for commit in rig.journal.commits for fact in commit]
        assert written == [cf.EpochStarted, cf.NodeRegistered]

    with_owner(tmp_path, main)


# A commit that takes longer than a quarter of a heartbeat is a slow one.
QUICK = Limits(heartbeat_s=0.1, silence_s=60.0)


def test_a_slow_disk_keeps_no_agent_waiting_for_its_answer(tmp_path: Path) -> None:
    """This holds for messages from before the commit and from during it."""

    async def main(rig: Rig) -> None:
        await rig.join()
        rig.happened.clear()
        rig.journal.gate.clear()
        submitting = asyncio.create_task(rig.submit())
        await rig.coordinator.put(ReportReceived(S1, Heartbeat(0.0)))
        await rig.happened.until("commit begins")
        node = rig.coordinator.state.nodes[NodeName("n1")]
        for number in range(1, 5):
            before = rig.coordinator.now().mono
            await rig.coordinator.put(ReportReceived(S1, Heartbeat(float(number))))
            await rig.happened.until("HeartbeatAck", 1 + number)
            assert node.heard_at >= before, "no timer will find it silent"
            assert node.answered_at >= before
        assert "commit ends" not in rig.happened
        assert "PrepareTask" not in rig.happened
        assert not submitting.done()
        rig.journal.gate.set()
        await submitting
        await rig.happened.until("PrepareTask")
        assert rig.happened.count("HeartbeatAck") == 5

    with_owner(tmp_path, main, QUICK)


def test_inputs_that_need_the_disk_wait_and_none_is_forgotten(tmp_path: Path) -> None:
    """A heartbeat with news stays in its place, and one that is answered before it counts."""

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        news = Heartbeat(1.0, changes=NodeChanges(disks=(DiskHealth("/", 1 << 30, 1 << 20),)))
        await rig.coordinator.put(ReportReceived(S1, news))
        await rig.coordinator.put(ReportReceived(S1, Heartbeat(2.0)))
        await rig.happened.until("HeartbeatAck")
        node = rig.coordinator.state.nodes[NodeName("n1")]
        heard_at, answered_at = node.heard_at, node.answered_at
        assert node.disks == ()
        rig.journal.gate.set()
        await submitting
        await rig.happened.until("HeartbeatAck", 2)
        assert node.disks == news.changes.disks
        assert (node.heard_at, node.answered_at) == (heard_at, answered_at)

    with_owner(tmp_path, main, QUICK)


async def test_after_a_failed_commit_nothing_is_acted_on_and_nobody_is_answered(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, Limits())
    owner = asyncio.get_running_loop().create_task(rig.coordinator.run(1))
    await rig.coordinator.started.wait()
    await rig.join()
    rig.happened.clear()
    rig.journal.fails = True
    with pytest.raises(CoordinatorStoppedError):
        await rig.submit()
    with pytest.raises(JournalWriteError):
        await owner
    with pytest.raises(CoordinatorStoppedError):
        await rig.coordinator.durable_state()
    with pytest.raises(CoordinatorStoppedError):
        await rig.submit()
    assert "PrepareTask" not in rig.happened
    rig.journal.close()
    journal = Journal.open(tmp_path)
    assert replay(journal.replay()).jobs == {}
    journal.close()


async def test_a_turn_whose_consequences_fail_ends_the_process_with_that_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, Limits())
    owner = asyncio.get_running_loop().create_task(rig.coordinator.run(1))
    await rig.coordinator.started.wait()
    await rig.join()

    def broken(*_: object) -> Never:
        raise ZeroDivisionError

    monkeypatch.setattr(guarded_turn, "advance", broken)
    with pytest.raises(CoordinatorStoppedError):
        await rig.submit()
    with pytest.raises(TurnFailedError):
        await owner
    rig.journal.close()
    journal = Journal.open(tmp_path)
    state = replay(journal.replay())
    assert state.jobs == {}
    ((_, origin),) = state.failed_inputs
    assert origin.startswith("submit of ")
    journal.close()


async def test_a_look_at_the_queues_that_fails_takes_its_inputs_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, Limits())
    owner = asyncio.get_running_loop().create_task(rig.coordinator.run(1))
    await rig.coordinator.started.wait()
    await rig.join()

    def broken(*_: object) -> Never:
        raise ZeroDivisionError

    monkeypatch.setattr(guarded_turn, "look_at_queues", broken)
    answers = await asyncio.gather(rig.submit("a"), rig.submit("b"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [CoordinatorStoppedError] * 2
    with pytest.raises(TurnFailedError):
        await owner
    rig.journal.close()
    journal = Journal.open(tmp_path)
    state = replay(journal.replay())
    # Else the next process would have them, and fail again.
    assert state.jobs == {}
    assert [origin for _, origin in state.failed_inputs] == ["a look at the queues"]
    journal.close()


def test_a_burst_of_submits_is_followed_by_one_look_at_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def counted(state: State, *args: Any, **more: Any) -> Any:
        looks.append(len(state.jobs))
        return schedule(state, *args, **more)

    async def main(rig: Rig) -> None:
        await rig.join()
        monkeypatch.setattr(turn, "schedule", counted)
        answers = await asyncio.gather(*(rig.submit(f"key-{number}") for number in range(200)))
        assert [answer.job for answer in answers] == list(range(1, 201))

    with_owner(tmp_path, main)
    # More than once, because a job started, and a look has a bounded length.
    assert len(looks) < 10


def test_replay_leads_to_the_state_that_was(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        for number in range(5):
            await rig.submit(f"key-{number}")
        await rig.coordinator.request(lambda rid: CancelReceived(rid, JobId(3), "ann"))

    rig = with_owner(tmp_path, main)
    journal = Journal.open(tmp_path)
    assert durable(replay(journal.replay())) == durable(rig.coordinator.state)
    journal.close()


def test_requests_are_answered_one_by_one(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        refused = await rig.submit()
        assert isinstance(refused, Declined), "no node is there"
        await rig.join()
        first = await rig.submit("key")
        assert first == Submitted(JobId(1), created=True)
        assert await rig.submit("key") == Submitted(JobId(1), created=False)
        unknown = await rig.coordinator.request(lambda rid: CancelReceived(rid, JobId(9), "ann"))
        assert isinstance(unknown, Declined)

    with_owner(tmp_path, main)


def durable(state: State) -> Any:
    """The state without what belongs to this process."""
    nodes = {
        name: (n.agent_id, n.boot_id, n.version, n.inventory, n.holders)
        for name, n in state.nodes.items()
    }
    return state.next_job, nodes, state.jobs, state.keys, state.queues, state.ports


def test_a_job_goes_to_the_archive_with_all_that_was_decided_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even while the last fact waits for the next commit."""
    monkeypatch.setattr(coordinator_module, "LAZY_FLUSH_S", 3600.0)
    monkeypatch.setattr(archive_module, "LINGER_S", 0.0)
    with_webhook = msgspec.structs.replace(SPEC, notify=("https://hook.example/x",))
    stays, goes = JobId(1), JobId(2)

    async def story(rig: Rig) -> None:
        owner = rig.coordinator
        await rig.join()
        await rig.submit()  # it has the node: the next one is queued
        submitted = await owner.submit(SubmitReceived(RequestId(0), with_webhook, "ann"))
        assert submitted == Submitted(goes, created=True)
        await owner.request(lambda rid: CancelReceived(rid, goes, "ann"))
        await owner.put(WebhookAttempted(goes, owner.state.jobs[goes].webhooks_made, 0, ""))
        archiving = asyncio.create_task(owner.archive_ended())
        while goes in owner.state.jobs:
            await owner.next_turn()
        archiving.cancel()

    with_owner(tmp_path, story)
    journal = Journal.open(tmp_path)
    left = list(journal.replay())
    journal.close()
    assert list(replay(left).jobs) == [stays]
    assert goes not in {getattr(record.fact, "job", None) for record in left}


def test_bulk_work_waits_for_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "GIVE_WAY_MAX_S", 60.0)

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        way = asyncio.create_task(rig.coordinator.yield_to_scheduling())
        way.add_done_callback(lambda _: rig.happened.append("gave way"))
        rig.journal.gate.set()
        await asyncio.gather(way, submitting)
        await rig.happened.until("gave way")
        assert rig.happened.index("commit ends") < rig.happened.index("gave way")

    with_owner(tmp_path, main)


def test_bulk_work_does_not_starve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "GIVE_WAY_MAX_S", 0.02)

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        await rig.coordinator.yield_to_scheduling()
        assert not submitting.done()
        rig.journal.gate.set()
        await submitting

    with_owner(tmp_path, main)

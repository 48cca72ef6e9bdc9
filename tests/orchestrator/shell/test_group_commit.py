"""Group commit: a launch and an end wait for one fsync."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.protocol.ids import JobId, NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.outcome import ExitStatus, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.inputs import HelloReceived, ReportReceived, SubmitReceived
from tests.orchestrator.fake_agent import prepared
from tests.orchestrator.shell.owner import HELLO, S1, SPEC, Rig, with_owner


def test_inputs_that_arrive_together_share_a_commit(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        await rig.submit()
        rig.journal.commits.clear()
        answers = await asyncio.gather(*(rig.submit() for _ in range(50)))
        assert [answer.job for answer in answers] == list(range(2, 52))
        assert len(rig.journal.commits) == 1
        assert len(rig.journal.commits[0]) == 50

    with_owner(tmp_path, main)


def test_lazy_facts_do_not_wait_long(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        hello = msgspec.structs.replace(HELLO, node=NodeName("n2"), agent_id="other", boot_id="b2")
        await rig.coordinator.put(HelloReceived(SessionId(2), hello, "10.0.0.2"))
        gang = msgspec.structs.replace(SPEC, nodes=2)
        await rig.coordinator.request(lambda rid: SubmitReceived(rid, gang, "ann"))
        rig.happened.clear()
        report = TaskReport(TaskId("1.1.0"), TaskState.PREPARED, prepared=prepared())
        await rig.coordinator.put(ReportReceived(S1, report))
        await rig.happened.until("commit ends")
        assert [type(fact) for fact in rig.journal.commits[-1]] == [f.TaskPrepared]

    with_owner(tmp_path, main)


def test_ends_that_trickle_in_share_the_commit_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes never end at one time, and only for the last of them somebody waits."""
    monkeypatch.setattr("orchestrator.shell.coordinator.PATIENCE_S", 1000.0)
    names = [NodeName(f"n{number}") for number in range(8)]
    spec = msgspec.structs.replace(SPEC, nodes=8)
    ended = {"prepared": prepared(), "exit": ExitStatus(code=0)}

    async def main(rig: Rig) -> None:
        put = rig.coordinator.put
        for number, name in enumerate(names):
            hello = msgspec.structs.replace(HELLO, node=name, agent_id=name, boot_id=name)
            await put(HelloReceived(SessionId(number + 1), hello, "10.0.0.1"))
        await rig.coordinator.request(lambda rid: SubmitReceived(rid, spec, "ann", "", "digest"))
        tasks = rig.coordinator.state.jobs[JobId(1)].attempts[0].tasks

        async def say(rank: int, state: TaskState, **more: Any) -> None:
            session = SessionId(names.index(tasks[rank].node) + 1)
            await put(ReportReceived(session, TaskReport(tasks[rank].id, state, **more)))

        for state in (TaskState.PREPARED, TaskState.ARRANGED, TaskState.STARTED):
            for rank in range(8):
                await say(rank, state, prepared=prepared())
        await rig.happened.until("StartTask", 8)
        await rig.coordinator.next_turn()
        rig.journal.commits.clear()
        rig.happened.clear()
        for rank in range(7):
            await say(rank, TaskState.CLEANED, **ended)
            for _ in range(5):
                await asyncio.sleep(0)
        assert rig.happened == []
        await say(7, TaskState.CLEANED, **ended)
        await rig.happened.until("ForgetTask", 8)

    rig = with_owner(tmp_path, main)
    cleaned = [sum(isinstance(fact, f.TaskCleaned) for fact in c) for c in rig.journal.commits]
    assert cleaned == [8]


def test_an_end_that_stays_alone_is_on_disk_and_then_forgotten(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        await rig.submit()
        rig.happened.clear()
        task = rig.coordinator.state.jobs[JobId(1)].attempts[0].tasks[0].id
        report = TaskReport(task, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(code=3))
        await rig.coordinator.put(ReportReceived(S1, report))
        await rig.happened.until("ForgetTask")
        assert rig.happened[:2] == ["commit begins", "commit ends"]

    with_owner(tmp_path, main)


def test_a_whole_course_of_a_gang_is_five_commits(tmp_path: Path) -> None:
    """An fsync is what a launch waits for: what all nodes say at about one time shares one."""
    names = [NodeName(f"n{number}") for number in range(4)]
    spec = msgspec.structs.replace(SPEC, nodes=4)

    async def main(rig: Rig) -> None:
        put = rig.coordinator.put
        for number, name in enumerate(names):
            hello = msgspec.structs.replace(HELLO, node=name, agent_id=name, boot_id=name)
            await put(HelloReceived(SessionId(number + 1), hello, "10.0.0.1"))
        await rig.happened.until("Welcome", 4)
        rig.journal.commits.clear()
        await rig.coordinator.request(lambda rid: SubmitReceived(rid, spec, "ann", "", "digest"))
        place = rig.coordinator.state.jobs[JobId(1)].attempts[0].tasks

        async def say(state: TaskState, awaited: str, **more: Any) -> None:
            for task in place:
                session = SessionId(names.index(task.node) + 1)
                await put(ReportReceived(session, TaskReport(task.id, state, **more)))
            await rig.happened.until(awaited, 4)

        await say(TaskState.PREPARED, "ArrangeTask", prepared=prepared())
        await say(TaskState.ARRANGED, "StartTask", prepared=prepared())
        await say(TaskState.STARTED, "StartTask", prepared=prepared())
        ended = {"prepared": prepared(), "exit": ExitStatus(code=0)}
        await say(TaskState.EXITED, "StartTask", **ended)
        await say(TaskState.CLEANED, "ForgetTask", **ended)
        job = rig.coordinator.state.jobs[JobId(1)]
        assert job.cause is not None
        assert job.cause.outcome is Outcome.SUCCESS

    rig = with_owner(tmp_path, main)
    kinds = [{type(fact).__name__ for fact in commit} for commit in rig.journal.commits]
    assert len(kinds) <= 5, kinds
    assert "JobEnded" in kinds[-1]

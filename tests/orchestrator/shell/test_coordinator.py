"""The owner: on disk first, acted on after, and never again after a failed commit."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.disks import DiskHealth
from muster.protocol.ids import JobId, NodeName, SessionId, TaskId
from muster.protocol.messages import Command, Heartbeat, Hello, Inventory, Refused, TaskReport
from muster.protocol.outcome import ExitStatus, Outcome
from muster.protocol.states import TaskState
from muster.spec.types import JobSpec, Launcher, Shell
from orchestrator.core import facts as f
from orchestrator.core.actions import Declined, RequestId, Submitted
from orchestrator.core.limits import Limits
from orchestrator.core.state import State
from orchestrator.core.stimuli import (
    CancelReceived,
    HelloReceived,
    NoticeTried,
    ReportReceived,
    SubmitReceived,
)
from orchestrator.journal.errors import JournalWriteError
from orchestrator.journal.sqlite import Journal
from orchestrator.journal.writer import JournalWriter
from orchestrator.shell import archive as archive_module
from orchestrator.shell import coordinator as coordinator_module
from orchestrator.shell.changes import Changes
from orchestrator.shell.coordinator import Coordinator, CoordinatorStoppedError, replay
from tests.orchestrator.fake_agent import prepared

SPEC = JobSpec(name="demo", run=Shell("true"), launcher=Launcher.NONE)
S1 = SessionId(1)
HELLO = Hello(NodeName("n1"), "agent", "boot", "0.1.0", Inventory("10.0.0.1", "m1", cpus=1))


class Happened(list[str]):
    """What happened, in order, and a wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def append(self, what: str) -> None:
        super().append(what)
        self._more.set()

    async def until(self, what: str, times: int = 1) -> None:
        while self.count(what) < times:
            self._more.clear()
            await self._more.wait()


class Recorder(JournalWriter):
    """The real journal, which also writes down what is committed, and may be held up."""

    def __init__(self, journal: Journal, happened: Happened) -> None:
        super().__init__(journal)
        self.happened = happened
        self.commits: list[list[f.Durable]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def append(self, facts: Sequence[tuple[f.Durable, float]]) -> range:
        self.happened.append("commit begins")
        await self.gate.wait()
        if self.fails:
            raise JournalWriteError("the disk is gone")
        seqs = await super().append(facts)
        self.commits.append([fact for fact, _ in facts])
        self.happened.append("commit ends")
        return seqs


class Rig:
    """An owner with a real journal; commands to agents are written down in `happened`."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.happened = Happened()
        journal = Journal.open(folder)
        self.journal = Recorder(journal, self.happened)
        self.coordinator = Coordinator(
            state=replay(journal.replay()),
            journal=self.journal,
            clock=SystemClock(),
            limits=limits,
            sessions=self,
            changes=Changes(),
        )

    def send(self, session: SessionId, command: Command) -> None:
        self.happened.append(type(command).__name__)

    def refuse(self, session: SessionId, refused: Refused) -> None:
        self.happened.append("refuse")

    def close(self, session: SessionId, why: str) -> None:
        self.happened.append("close")

    async def submit(self, key: str = "") -> Any:
        return await self.coordinator.request(
            lambda rid: SubmitReceived(rid, SPEC, "ann", key, "digest")
        )

    async def deciding(self) -> asyncio.Task[Any]:
        """A submit whose commit has begun, and lasts until the journal's gate is opened."""
        self.happened.clear()
        self.journal.gate.clear()
        submitting = asyncio.create_task(self.submit())
        await self.happened.until("commit begins")
        return submitting

    async def join(self) -> None:
        await self.coordinator.put(HelloReceived(S1, HELLO, "10.0.0.1"))
        await self.happened.until("Welcome")


def with_owner(
    folder: Path,
    main: Callable[[Rig], Coroutine[Any, Any, None]],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> Rig:
    async def run() -> Rig:
        rig = Rig(folder, limits)
        owner = asyncio.get_running_loop().create_task(rig.coordinator.run(1))
        try:
            async with asyncio.timeout(30):
                await rig.coordinator.started.wait()
                await main(rig)
        finally:
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)
            await rig.coordinator.flush()
            rig.journal.close()
        return rig

    return asyncio.run(run())


def test_nothing_is_done_before_it_is_on_disk(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        assert rig.coordinator.state.jobs, "decided already"
        assert not submitting.done()
        reader = asyncio.create_task(rig.coordinator.settled())
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
        await rig.coordinator.beat()  # with nothing to do
        await rig.join()
        submitting = await rig.deciding()
        beat = asyncio.create_task(rig.coordinator.beat())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not beat.done(), "an owner that hangs has no pulse"
        rig.journal.gate.set()
        await beat
        await submitting

    rig = with_owner(tmp_path, main)
    with pytest.raises(CoordinatorStoppedError):
        asyncio.run(rig.coordinator.beat())


def test_what_comes_together_is_committed_once(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        await rig.submit()
        rig.journal.commits.clear()
        answers = await asyncio.gather(*(rig.submit() for _ in range(50)))
        assert [answer.job for answer in answers] == list(range(2, 52))
        assert len(rig.journal.commits) == 1
        assert len(rig.journal.commits[0]) == 50

    with_owner(tmp_path, main)


def test_what_is_only_about_connections_is_never_written(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await rig.join()
        await rig.coordinator.put(ReportReceived(S1, Heartbeat(1.0)))
        await rig.happened.until("HeartbeatAck")
        written = [type(fact) for commit in rig.journal.commits for fact in commit]
        assert written == [f.EpochStarted, f.NodeRegistered]

    with_owner(tmp_path, main)


# A commit that takes longer than a quarter of a heartbeat is a slow one.
QUICK = Limits(heartbeat_s=0.1, silence_s=60.0)


def test_a_slow_disk_keeps_no_agent_waiting_for_its_answer(tmp_path: Path) -> None:
    """Neither one that was heard before the commit began nor those that are heard meanwhile."""

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
            assert node.lease_until >= before + QUICK.lease_s + QUICK.lease_margin_s
        assert "commit ends" not in rig.happened
        assert "PrepareTask" not in rig.happened
        assert not submitting.done()
        rig.journal.gate.set()
        await submitting
        await rig.happened.until("PrepareTask")
        assert rig.happened.count("HeartbeatAck") == 5

    with_owner(tmp_path, main, QUICK)


def test_what_needs_the_disk_waits_for_it_and_nothing_is_forgotten(tmp_path: Path) -> None:
    """A heartbeat with news stays in its place, and one that is answered before it counts."""

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        news = Heartbeat(1.0, disks=(DiskHealth("/", 1 << 30, 1 << 20),))
        await rig.coordinator.put(ReportReceived(S1, news))
        await rig.coordinator.put(ReportReceived(S1, Heartbeat(2.0)))
        await rig.happened.until("HeartbeatAck")
        node = rig.coordinator.state.nodes[NodeName("n1")]
        heard_at, lease_until = node.heard_at, node.lease_until
        assert node.disks == ()
        rig.journal.gate.set()
        await submitting
        await rig.happened.until("HeartbeatAck", 2)
        assert node.disks == news.disks
        assert (node.heard_at, node.lease_until) == (heard_at, lease_until)

    with_owner(tmp_path, main, QUICK)


def test_after_a_failed_commit_nothing_is_acted_on_and_nobody_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
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
            await rig.coordinator.settled()
        with pytest.raises(CoordinatorStoppedError):
            await rig.submit()
        assert "PrepareTask" not in rig.happened
        rig.journal.close()

    asyncio.run(main())
    journal = Journal.open(tmp_path)
    assert replay(journal.replay()).jobs == {}
    journal.close()


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


def test_what_may_wait_for_the_next_commit_does_not_wait_long(tmp_path: Path) -> None:
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


def test_a_job_goes_to_the_archive_with_all_that_was_decided_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its last fact may wait for the next commit, too."""
    monkeypatch.setattr(coordinator_module, "LAZY_FLUSH_S", 3600.0)
    monkeypatch.setattr(archive_module, "LINGER_S", 0.0)
    told = msgspec.structs.replace(SPEC, notify=("https://hook.example/x",))

    async def story(rig: Rig) -> None:
        owner = rig.coordinator
        await rig.join()
        await rig.submit()  # it has the node: the next one is queued
        submitted = await owner.submit(SubmitReceived(RequestId(0), told, "ann"))
        assert isinstance(submitted, Submitted)
        job = submitted.job
        await owner.request(lambda rid: CancelReceived(rid, job, "ann"))
        await owner.put(NoticeTried(job, owner.state.jobs[job].notices_made, 0, ""))
        archiving = asyncio.create_task(owner.archive_ended())
        while job in owner.state.jobs:
            await owner.beat()
        archiving.cancel()

    with_owner(tmp_path, story)
    journal = Journal.open(tmp_path)
    assert list(replay(journal.replay()).jobs) == [1]
    journal.close()


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
        await rig.coordinator.beat()
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


def test_what_gives_way_waits_for_what_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "GIVE_WAY_MAX_S", 60.0)

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        way = asyncio.create_task(rig.coordinator.give_way())
        way.add_done_callback(lambda _: rig.happened.append("gave way"))
        rig.journal.gate.set()
        await asyncio.gather(way, submitting)
        await rig.happened.until("gave way")
        assert rig.happened.index("commit ends") < rig.happened.index("gave way")

    with_owner(tmp_path, main)


def test_what_gives_way_does_not_starve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "GIVE_WAY_MAX_S", 0.02)

    async def main(rig: Rig) -> None:
        await rig.join()
        submitting = await rig.deciding()
        await rig.coordinator.give_way()
        assert not submitting.done()
        rig.journal.gate.set()
        await submitting

    with_owner(tmp_path, main)

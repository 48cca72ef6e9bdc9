"""Reports of a task's supervisor: with real files, a real shipper and no shim."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog.testing

from agent.core.inputs import Input, ShimReported, TaskFound, TaskPaths, TaskRemoved
from agent.core.shim_protocol import ShimExit, ShimPhase, ShimStatus
from agent.leftovers.kill import MARK
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.traffic.nccl_log import LOG
from agent.monitors.traffic.sampler import STATE, WatchedTraffic
from agent.monitors.traffic.samplers import TrafficSamplers
from agent.shim.exit_record import IDENTITY
from agent.shim.system.syscalls import boot_id
from agent.shims.shim_files import ShimIdentity
from agent.taskdirs.taskdirs import NCCL, TaskDirs
from agent.tasks import supervisor as module
from agent.tasks.adoption import FoundTask, examine
from agent.tasks.supervisor import Known, TaskSupervisor
from muster.daemon.clock import SystemClock
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.observations.fabric import NodeFabric
from tests.agent.coordinator import DEADLINE_S, Coordinator
from tests.agent.logs.test_shipper import STREAMS, TASK, shipping
from tests.descriptors import descriptors_left

NONE_LEFT = os.strerror(errno.EMFILE)
OTHER = TaskId("8.1.0")
RUNNING = ShimStatus(TASK, ShimPhase.RUNNING, streams=STREAMS)
ENDED = ShimStatus(TASK, ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0), streams=STREAMS)
EARLIER = b"h.1 what the earlier life had read\n"
SINCE = b"h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n"


@dataclass
class Bench:
    folder: Path
    coordinator: Coordinator
    posted: asyncio.Queue[Input]
    proofs: TrafficSamplers
    supervised: TaskSupervisor
    owner: TaskOwner

    def hears(self, *statuses: ShimStatus) -> None:
        for status in statuses:
            self.supervised._heard(status)
        self.owner.spawn(self.supervised._report_statuses(), name="statuses")

    async def next(self) -> Input:
        async with asyncio.timeout(DEADLINE_S):
            return await self.posted.get()


@asynccontextmanager
async def keeping(root: Path, *, adopted: bool) -> AsyncIterator[Bench]:
    posted: asyncio.Queue[Input] = asyncio.Queue()
    async with (
        Coordinator() as coordinator,
        shipping(root, coordinator) as (logs, stored),
        TaskOwner("test") as owner,
    ):
        folders = TaskDirs(root)
        folder = folders.path(TASK)
        for name in ("logs", NCCL):
            (folder / name).mkdir(parents=True)
        for stream in STREAMS:
            (folder / stream.path).touch()
        say = posted.put_nowait
        proofs = TrafficSamplers(root, folders, logs, SystemClock(), say, owner)
        hangs = HangMonitor(SystemClock(), say, 5.0, root=root)
        known = Known(TaskPaths("", "", "", ""), (), NodeFabric(), (), None) if adopted else None
        # The connection is open: messages arrive at once.
        logs.complete(OTHER, reported=False)
        assert await stored.take(1) == {OTHER}
        supervised = TaskSupervisor(TASK, folders, logs, proofs, hangs, say, found=known)
        yield Bench(folder, coordinator, posted, proofs, supervised, owner)


@pytest.mark.parametrize("earlier", [b"", EARLIER])
async def test_nccls_lines_of_a_task_that_ended_without_us_are_sent_before_its_log_ends(
    tmp_path: Path, earlier: bytes
) -> None:
    async with keeping(tmp_path, adopted=True) as bench:
        (bench.folder / LOG).write_bytes(earlier)
        (bench.folder / NCCL / "h.1").write_bytes(SINCE)
        (bench.folder / STATE).write_bytes(msgspec.json.encode(WatchedTraffic()))
        bench.proofs.adopt(TASK)
        bench.hears(ENDED)
        async with asyncio.timeout(DEADLINE_S):
            await bench.supervised.known.wait()
        await bench.coordinator.logs.until(lambda store: TASK in store.tasks)
        sent = bench.coordinator.logs.data[StreamId(TASK, StreamKind.NCCL)]
        assert sent.startswith(earlier)
        assert b"mlx5_0" in sent
        assert isinstance(await bench.next(), TaskFound)


@pytest.mark.parametrize("adopted", [False, True])
async def test_logs_sent_by_an_earlier_agent_process_are_not_reported_as_empty(
    tmp_path: Path, adopted: bool
) -> None:
    """Its program may have emptied the file meanwhile."""
    async with keeping(tmp_path, adopted=adopted) as bench:
        bench.hears(RUNNING, ENDED)
        began, ended = await bench.next(), await bench.next()
        assert isinstance(began, TaskFound if adopted else ShimReported)
        assert isinstance(ended, ShimReported)
        assert ended.no_output is not adopted
        if adopted:
            await bench.coordinator.logs.until(lambda store: TASK in store.tasks)


async def test_a_task_whose_shim_died_is_reported_as_soon_as_there_are_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(folder: Path) -> FoundTask:
        try:
            return examine(folder)
        except OSError:
            loop.call_soon_threadsafe(blind.set)
            raise

    monkeypatch.setattr(module, "examine", look)
    monkeypatch.setattr(module, "_PAUSE_MAX_S", 0.01)
    async with keeping(tmp_path, adopted=False) as bench:
        with structlog.testing.capture_logs() as said:
            with descriptors_left():
                keeps = loop.create_task(bench.supervised.run())
                async with asyncio.timeout(DEADLINE_S):
                    await blind.wait()
            ended = await bench.next()
        assert (said[0]["event"], said[0]["why"]) == ("task_not_examined", NONE_LEFT)
        assert isinstance(ended, ShimReported)
        assert ended.status.phase is ShimPhase.CLEANED
        bench.supervised.remove()
        assert isinstance(await bench.next(), TaskRemoved)
        assert not bench.folder.exists()
        await keeps


async def test_a_task_without_a_folder_is_clean_only_once_its_processes_are_dead(
    tmp_path: Path,
) -> None:
    """Also if its shim still lives, or is about to die, when its connection ends."""
    shim = tmp_path / "muster-shim"
    shim.symlink_to("/bin/sleep")
    with sleeping(shim) as lives, sleeping("sleep", f"{TASK}:{lives.pid}:0") as rank:
        async with keeping(tmp_path, adopted=False) as bench:
            identity = ShimIdentity(TASK, lives.pid, boot_id(), f"{TASK}:{lives.pid}:0")
            (bench.folder / IDENTITY).write_bytes(msgspec.json.encode(identity))
            bench.hears(RUNNING)
            assert isinstance(await bench.next(), ShimReported)
            shutil.rmtree(bench.folder)
            found, _ = await asyncio.to_thread(bench.supervised._examine, False)
        assert found.status is not None
        assert found.status.phase is ShimPhase.CLEANED
        assert rank.poll() == -signal.SIGKILL


@contextmanager
def sleeping(program: str | Path, mark: str = "") -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program, "10000"], env={MARK: mark}) as process:
        try:
            yield process
        finally:
            process.kill()

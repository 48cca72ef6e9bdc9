"""Traffic of a task from its start to its end, across restarts of the agent."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.core.inputs import Input, TaskObserved
from agent.monitors.traffic import nccl_log
from agent.monitors.traffic import sampler as module
from agent.monitors.traffic.counters import CounterReader
from agent.monitors.traffic.nccl_log import FILES_MAX, NcclLines
from agent.monitors.traffic.sampler import STATE, Sampler, WatchedTraffic, kept
from muster.fabric.counters import RECEIVED, SENT, Totals
from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.observations.traffic import FabricReport, NcclEvidence
from tests.agent.coordinator import DEADLINE_S
from tests.agent.probe.fabric.trees import Node
from tests.descriptors import descriptors_left
from tests.fabric import nccl_lines as lines

TASK = TaskId("7.1.0")
PORT = "sys/class/infiniband/mlx5_0/ports/1"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.mono = 1000.0

    def now(self) -> Instant:
        return Instant(self.mono, 0.0)


class Bench:
    """A node, a task's folder, and one agent's life after the other."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root / "sys-root")
        self.node.hca("mlx5_0")
        self.node.port("mlx5_0", link="InfiniBand")
        self.folder = root / "task"
        for name in ("nccl", "logs"):
            (self.folder / name).mkdir(parents=True)
        self.clock = Clock()
        self.heard: list[FabricReport] = []
        self.followed = 0
        self.lives: list[Sampler] = []
        self.count(0)

    def count(self, words: int) -> None:
        for name in (SENT, RECEIVED):
            self.node.file(f"{PORT}/counters/{name}", f"{words}\n")

    def say(self, text: str) -> None:
        with open(self.folder / "nccl" / "gpu-07.1", "a") as file:
            file.write(text)

    def life(self, watched: WatchedTraffic | None = None) -> Sampler:
        def post(received: Input) -> None:
            assert isinstance(received, TaskObserved)
            assert received.changes.traffic is not None
            self.heard.append(received.changes.traffic)

        def follow() -> None:
            self.followed += 1

        watched = watched or WatchedTraffic(totals=Totals(planned=("mlx5_0:1",)))
        reader = CounterReader(self.node.root)
        made = Sampler(TASK, self.folder, reader, watched, self.clock, post, follow)
        self.lives.append(made)
        return made

    def look(self, sampler: Sampler, after_s: float = 2.0) -> None:
        self.clock.mono += after_s
        asyncio.run(sampler.look())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for life in made.lives:
        # The last look closes the files.
        asyncio.run(life.look(last=True, counters=False))


def test_only_what_changes_the_verdict_is_said_at_once(bench: Bench) -> None:
    sampler = bench.life()
    bench.look(sampler)
    assert len(bench.heard) == 1
    bench.count(100)
    bench.look(sampler)
    assert len(bench.heard) == 1
    bench.say(lines.IB_2_18)
    bench.look(sampler)
    assert bench.heard[-1].nccl.over_rdma == 4
    assert bench.followed
    bench.count(10**6)
    bench.look(sampler)
    assert bench.heard[-1].ports[0].sent == 4 * 10**6
    said = len(bench.heard)
    bench.count(2 * 10**6)
    bench.look(sampler)
    assert len(bench.heard) == said
    bench.look(sampler, after_s=15.0)
    assert bench.heard[-1].ports[0].sent == 8 * 10**6


def test_another_life_goes_on_and_says_that_nobody_looked(bench: Bench) -> None:
    first = bench.life()
    bench.look(first)
    bench.say(lines.IB_2_18)
    bench.count(10**6)
    bench.look(first)
    # Killed: it writes nothing more.
    bench.count(3 * 10**6)
    bench.say(lines.channels("IB", 2))
    second = bench.life(kept(bench.folder))
    bench.look(second, after_s=40.0)
    bench.count(4 * 10**6)
    bench.look(second)
    asyncio.run(second.finish())
    last = bench.heard[-1]
    assert last.ports[0].sent == 16 * 10**6
    assert (last.nccl.over_rdma, last.nccl.processes) == (6, 1)
    assert (last.gaps, last.gap_s) == (1, 40.0)
    # Traffic during the gap does not count towards the peak.
    assert last.peak == 4 * 10**6 / 2.0


def test_counters_are_not_read_for_a_task_that_ended_meanwhile(bench: Bench) -> None:
    first = bench.life()
    bench.look(first)
    bench.count(10**6)
    bench.look(first)
    bench.count(9 * 10**6)
    bench.say(lines.SOCKET_2_18)
    asyncio.run(bench.life(kept(bench.folder)).finish(counters=False))
    assert bench.heard[-1].ports[0].sent == 4 * 10**6
    assert bench.heard[-1].nccl.sockets == 1


def test_the_last_figures_are_said_once(bench: Bench) -> None:
    sampler = bench.life()
    bench.look(sampler)
    bench.count(50)
    asyncio.run(sampler.finish())
    said = len(bench.heard)
    assert bench.heard[-1].ports[0].sent == 200
    asyncio.run(sampler.finish())
    bench.look(sampler)
    assert len(bench.heard) == said


def test_the_last_look_waits_a_while_for_descriptors(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        blind = asyncio.Event()
        loop, look = asyncio.get_running_loop(), NcclLines.look

        def looked(of: NcclLines) -> NcclEvidence:
            evidence = look(of)
            if of.blind:
                loop.call_soon_threadsafe(blind.set)
            return evidence

        monkeypatch.setattr(NcclLines, "look", looked)
        sampler = bench.life()
        bench.say(lines.IB_2_18)
        with descriptors_left():
            ending = loop.create_task(sampler.finish())
            async with asyncio.timeout(DEADLINE_S):
                await blind.wait()
        await ending

    asyncio.run(story())
    assert bench.followed == 1
    assert bench.heard[-1].nccl.over_rdma == 4
    assert (bench.folder / "logs/nccl.log").read_text() == lines.IB_2_18


def test_a_driver_that_hangs_keeps_back_no_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(module, "LAST_LOOK_S", 1.0)  # its thread has begun by then
    monkeypatch.setattr(CounterReader, "reading", lambda *_: hangs.wait())

    async def story() -> None:
        bench.say(lines.IB_2_18)
        try:
            await bench.life().finish()
            assert bench.followed == 1
            assert (bench.folder / "logs/nccl.log").read_text() == lines.IB_2_18
        finally:
            monkeypatch.undo()
            hangs.set()

    asyncio.run(story())


def test_a_kept_state_that_cannot_be_read_is_none(bench: Bench) -> None:
    assert kept(bench.folder) is None
    (bench.folder / STATE).write_text("{")
    assert kept(bench.folder) is None


def test_the_largest_state_can_be_read(bench: Bench) -> None:
    wide = chr(0x1F680)
    devices = " ".join(f"[{n}]{n:063}:1/RoCE" for n in range(64))
    for number in range(FILES_MAX):
        text = "".join(
            f":1:{n} [0] comm 0x1 rank 1 nranks 9999 c commId 0x{number:08x}{n:08x} - Init START\n"
            f":1:{n} [0] NCCL INFO Using network {wide * 63}\n"
            for n in range(40)
        )
        for n in range(4):
            text += f"NCCL WARN {n} Call to ibv_{wide * 200}\n"
        text += f"NCCL INFO NET/IB : Using {devices[:3900]}\n"
        (bench.folder / "nccl" / f"{number:0200}").write_text(text)
    bench.look(bench.life())
    assert (bench.folder / STATE).stat().st_size > 1 << 20
    again = kept(bench.folder)
    assert again is not None
    assert again.said.processes == FILES_MAX


def test_the_last_look_reads_more_than_one_pass_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_log, "LOOK_BYTES_MAX", 1 << 20)
    bench.say("x" * (3 << 20) + "\n" + lines.SOCKET_2_18)
    asyncio.run(bench.life().finish())
    assert bench.heard[-1].nccl.sockets == 1


def test_lines_of_a_job_with_its_own_debug_file_are_not_read(bench: Bench) -> None:
    bench.say(lines.SOCKET_2_18)
    bench.look(bench.life(WatchedTraffic(unheard="they go elsewhere")))
    assert bench.heard[-1].nccl.processes == 0
    assert bench.heard[-1].unheard == "they go elsewhere"


def test_memory_is_the_same_after_a_thousand_samples(bench: Bench) -> None:
    sampler = bench.life()
    bench.say(lines.IB_2_18)

    async def look(times: int) -> None:
        for n in range(times):
            bench.clock.mono += 2.0
            if n % 50 == 0:
                bench.count(n * 10**6)
            await sampler.look()
            bench.heard.clear()

    asyncio.run(look(50))
    size = len((bench.folder / STATE).read_bytes())
    tracemalloc.start()
    asyncio.run(look(20))
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    asyncio.run(look(1000))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 64 << 10
    assert len((bench.folder / STATE).read_bytes()) < size + 200
    assert len(msgspec.json.encode(sampler.report())) < 2000

"""Answers to the coordinator's looks, of a real process with a recorder as NCCL has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agent.core.inputs import Input, StacksObserved
from agent.monitors.hangs import flight_recorder, py_spy
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.hangs.stack_dumps import BYTES_MAX, StackDumper, bounded
from agent.taskdirs.taskdirs import NCCL, TaskDirs, user_of
from muster.daemon.task_owner import TaskOwner
from muster.protocol.link.control_channel import DumpStacks
from muster.protocol.observations.hangs import RankStacks
from tests.agent.monitors.hangs.test_monitor import TASK, Now, program, status
from tests.agent.shims.shim_of import be_shim_of

RECORDS = """
import os, pickle, sys, time
folder, log = FOLDER, LOG
os.mkfifo(f"{folder}/frp_0.pipe")
trigger = os.open(f"{folder}/frp_0.pipe", os.O_RDWR)
print("ready", flush=True)
os.read(trigger, 1)
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.01)
with open(log, "ab") as file:
    file.write(b"dumps " * 1000)
with open(f"{folder}/new", "wb") as file:
    pickle.dump({"entries": []}, file)
os.rename(f"{folder}/new", f"{folder}/fr_0")
time.sleep(600)
"""


def test_a_recorder_that_writes_late_is_no_sign_that_its_rank_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "WAIT_S", 0.1)
    folders = TaskDirs(tmp_path)
    folder = folders.path(TASK)
    for name in ("logs", NCCL):
        (folder / name).mkdir(parents=True)
    be_shim_of(folder)
    out = folder / "logs" / "out"
    out.write_bytes(b"")
    text = f"FOLDER, LOG = {str(folder / NCCL)!r}, {str(out)!r}\n" + RECORDS
    asyncio.run(story(folders, folder, out, text))


@pytest.mark.parametrize("char", ["\x01", "\N{ROCKET}", "a"])
@pytest.mark.parametrize("ranks", [24, 1024])
def test_stacks_fit_into_a_report_whatever_their_names(char: str, ranks: int) -> None:
    threads = [
        {
            "os_thread_id": 1,
            "thread_name": 200 * char,
            "frames": 40 * [{"name": 200 * char, "filename": 300 * char, "line": 10**9}],
        }
    ]
    found = msgspec.json.decode(msgspec.json.encode(threads), type=list[py_spy._Thread])
    stacks = py_spy._main_first(found, 1, threads=False)
    assert all(frame.name.isprintable() and frame.file.isprintable() for frame in stacks[0].frames)
    assert stacks[0].name.isprintable()
    fitting = bounded(tuple(RankStacks(rank, 1 << 22, stacks) for rank in range(ranks)))
    assert len(msgspec.json.encode(fitting)) <= BYTES_MAX
    assert [rank.rank for rank in fitting] == list(range(ranks))
    assert all(rank.threads or "left out" in rank.problem for rank in fitting)
    assert fitting[0].threads


async def story(folders: TaskDirs, folder: Path, out: Path, text: str) -> None:
    clock, answers = Now(), asyncio.Queue[Input]()
    watch = HangMonitor(clock, lambda _: None, 5.0, root=folder)
    owner = TaskOwner("test")
    dumper = StackDumper(watch, folders, clock, answers.put_nowait, owner)

    async def look() -> float | None:
        clock.mono += 5.0
        await watch.look()
        activity = watch.activity(TASK)
        assert activity is not None
        return activity[0][0].still_s

    with program(text) as process:
        watch.heard(TASK, folder, status(process.pid))
        await look()
        with out.open("ab") as file:
            file.write(b"step\n" * 100)
        assert await look() is None
        assert [await look() for _ in range(3)][-1] == pytest.approx(15.0)
        dumper.begin(DumpStacks(TASK, 1, 1, recorder=True))
        async with asyncio.timeout(180):
            answer = await answers.get()
        assert isinstance(answer, StacksObserved)
        assert "wrote nothing" in answer.report.recorded[0].problem
        assert await look() == pytest.approx(15.0)
        (folder / NCCL / "go").touch()
        await flight_recorder.written(folder, user_of(folder), [flight_recorder.DumpTarget(0)])
        assert await look() == pytest.approx(15.0)
    await owner.close()

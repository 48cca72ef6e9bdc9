"""The reader of the GPUs' use, between a driver that may hang and the agent's core."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.monitors import gpu_utilization
from agent.monitors.gpu_utilization import GpuUtilizationMonitor
from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.observations.gpus import IdleGpus

TASK, WHOLE = TaskId("1.1.0"), TaskId("2.1.0")
WANTED = IdleGpus(5, 10.0)


class Clock:
    def __init__(self) -> None:
        self.mono = 100.0

    def now(self) -> Instant:
        return Instant(self.mono, 0.0)


def idle(since: float | None) -> TaskObserved:
    return TaskObserved(TASK, TaskChanges(idle_since=since))


def watch(said: list[Input], clock: Clock, *node: str) -> GpuUtilizationMonitor:
    return GpuUtilizationMonitor(dict, lambda: node, clock, said.append)


def test_each_task_is_judged_by_its_own_gpus_and_reported_once() -> None:
    said: list[Input] = []
    clock = Clock()
    watched = watch(said, clock, "GPU-1", "GPU-2")
    watched.begin(TASK, WANTED, ("GPU-1",))
    watched.begin(WHOLE, WANTED, ())
    watched.begin(TaskId("3.1.0"), None, ("GPU-1",))
    for _ in range(4):
        watched.heard({"GPU-1": 0, "GPU-2": 90})
        clock.mono += 5.0
    assert said == [idle(100.0)]
    watched.heard({"GPU-2": 0})
    assert said[1:] == [idle(None)]
    watched.end(TASK)
    watched.heard({"GPU-1": 0, "GPU-2": 0})
    assert len(said) == 2


def test_a_node_without_gpus_is_never_idle() -> None:
    said: list[Input] = []
    clock = Clock()
    watched = watch(said, clock)
    watched.begin(WHOLE, WANTED, ())
    for _ in range(4):
        watched.heard({})
        clock.mono += 5.0
    assert said == []


def test_a_driver_that_hangs_takes_back_what_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_utilization, "PATIENCE_S", 0.05)
    hangs, go = threading.Event(), threading.Event()
    clock = Clock()

    def read() -> dict[str, int]:
        if hangs.is_set():
            go.wait(300)
        clock.mono += 5.0
        return {"GPU-1": 0}

    async def main() -> list[Input]:
        posted: asyncio.Queue[Input] = asyncio.Queue()
        watched = GpuUtilizationMonitor(read, lambda: (), clock, posted.put_nowait, every_s=0.001)
        watched.begin(TASK, WANTED, ("GPU-1",))
        looking = asyncio.create_task(watched.run())
        async with asyncio.timeout(180):
            first = await posted.get()
            hangs.set()
            second = await posted.get()
        go.set()
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        return [first, second]

    assert asyncio.run(main()) == [idle(105.0), idle(None)]

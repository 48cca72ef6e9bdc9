"""The GPUs of a task are checked before it begins, and changes are reported."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.config import AgentConfig, FabricSettings
from agent.core.inputs import Input, NodeObserved
from agent.monitors.gpus import CLEAN_BYTES, GpuDirtyError, GpuGoneError, GpuMonitor
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.gpus import GpuDevice, usable
from tests.cluster.cards import address, describe, plant, uuid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plant(tmp_path, 1, 4)
    return tmp_path


def prepare(*gpus: str) -> PrepareTask:
    return PrepareTask(TaskId("7.1.0"), "none", None, None, (), {}, 1.0, gpus=gpus)


def check(root: Path, *gpus: str, offered: int | None = None) -> list[Input]:
    posted: list[Input] = []
    config = AgentConfig(
        gpus="auto" if offered is None else offered, fabric=FabricSettings(root=root)
    )
    asyncio.run(GpuMonitor(config, posted.append).check(prepare(*gpus)))
    return posted


def devices_of(seen: Input) -> tuple[GpuDevice, ...]:
    assert isinstance(seen, NodeObserved)
    assert seen.changes.devices is not None
    return seen.changes.devices


def test_existing_gpus_are_assigned_and_reported(root: Path) -> None:
    (seen,) = check(root, uuid(1, 0), uuid(1, 3))
    assert [it.pci for it in devices_of(seen)] == [address(number) for number in range(4)]


def test_a_task_with_a_whole_node_costs_no_look(root: Path) -> None:
    assert check(root) == []


def test_a_gpu_that_has_gone_or_is_another_one_is_named(root: Path) -> None:
    describe(root, 2, uuid(2, 2))
    with pytest.raises(GpuGoneError, match=f"GPU {uuid(1, 2)} no longer exists"):
        check(root, uuid(1, 1), uuid(1, 2))


def test_a_gpu_that_no_job_is_given_any_more_is_named(root: Path) -> None:
    (root / f"proc/driver/nvidia/gpus/{address(1)}/information").unlink()
    (root / f"proc/driver/nvidia/gpus/{address(1)}").rmdir()
    with pytest.raises(GpuGoneError, match="no longer exists"):
        check(root, uuid(1, 1))
    with pytest.raises(GpuGoneError, match=r"\(.*\) is excluded by `gpus`"):
        check(root, uuid(1, 3), offered=2)


def test_the_configuration_offers_the_first_of_them(root: Path) -> None:
    (seen,) = check(root, uuid(1, 0), offered=2)
    assert [it.uuid for it in usable(devices_of(seen))] == [uuid(1, 0), uuid(1, 1)]
    assert len(devices_of(seen)) == 4


class NVMLError(Exception):
    pass


@dataclass
class Cards:
    """GPUs of this machine, by NVML: `used` is what each look finds in use of the first one."""

    used: Iterator[int]
    count: int = 2
    users: tuple[int, ...] = ()
    looks: int = field(default=0, init=False)

    def module(self) -> Any:
        return SimpleNamespace(
            NVMLError=NVMLError,
            nvmlMemory_v2=2,
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: self.count,
            nvmlDeviceGetHandleByIndex=lambda at: at,
            nvmlDeviceGetPciInfo=lambda at: SimpleNamespace(busId=f"0000{address(at)}"),
            nvmlDeviceGetName=lambda _: "NVIDIA H100 80GB HBM3",
            nvmlDeviceGetUUID=lambda at: uuid(1, at),
            nvmlDeviceGetMemoryInfo=self.memory,
            nvmlDeviceGetMigMode=lambda _: (0, 0),
            nvmlDeviceGetComputeRunningProcesses=lambda at: [
                SimpleNamespace(pid=pid) for pid in self.users if at == 0
            ],
        )

    def memory(self, at: int, version: int = 1) -> Any:
        # Without its version it counts what the driver keeps for itself.
        own = 0 if version == 2 else CLEAN_BYTES
        if at != 0 or version != 2:
            return SimpleNamespace(total=80 << 30, used=own)
        self.looks += 1
        return SimpleNamespace(total=80 << 30, used=next(self.used))


def seen_by(cards: Cards, monkeypatch: pytest.MonkeyPatch, *gpus: str, **more: Any) -> GpuMonitor:
    monkeypatch.setitem(sys.modules, "pynvml", cards.module())
    found = GpuMonitor(AgentConfig(gpus="auto"), lambda _: None, poll_s=0.001, **more)
    asyncio.run(found.check(prepare(*gpus)))
    return found


@pytest.mark.parametrize("gpus", [(uuid(1, 0),), ()], ids=("its GPUs", "the whole node"))
def test_memory_of_an_earlier_job_is_waited_for(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = Cards(chain([40 << 30, CLEAN_BYTES], repeat(CLEAN_BYTES - 1)))
    seen_by(cards, monkeypatch, *gpus, give_up_s=60.0)
    assert cards.looks == 3


def test_a_gpu_of_somebody_else_may_be_as_dirty_as_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = Cards(repeat(40 << 30))
    seen_by(cards, monkeypatch, uuid(1, 1), give_up_s=0.0)
    assert cards.looks == 1


@pytest.mark.parametrize("gpus", [(uuid(1, 0),), ()], ids=("its GPUs", "the whole node"))
async def test_a_dirty_gpu_is_refused_and_nobody_s_until_it_is_clean(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [40 << 30]
    cards = Cards(iter(lambda: used[0], None), users=(4711,))
    monkeypatch.setitem(sys.modules, "pynvml", cards.module())
    posted: list[Input] = []
    found = GpuMonitor(AgentConfig(gpus="auto"), posted.append, poll_s=0.001, give_up_s=0.0)
    with pytest.raises(GpuDirtyError, match="has 40 GiB of its memory or more in use, and"):
        await found.check(prepare(*gpus))
    # The GPU goes to no task now. The reason is for operators: the next task may be another user's.
    with pytest.raises(GpuGoneError, match="is in use outside all jobs"):
        await found.check(prepare(uuid(1, 0)))
    used[0] = 0
    await found.check(prepare(uuid(1, 0)))
    seen = [devices_of(it) for it in posted]
    busy = [devices[0].busy for devices in seen]
    assert busy[-2].startswith("has 40 GiB")
    assert busy[-1] == ""
    assert all(not devices[1].busy for devices in seen)


def test_without_nvml_nothing_is_known_of_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    check(root, uuid(1, 0))

"""The GPUs of a task are looked at before it is begun, and what has changed is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.config import AgentConfig, Fabric
from agent.core.stimuli import GpusSeen, Stimulus
from agent.gpus import GpuGoneError, Gpus
from muster.protocol.gpus import usable
from muster.protocol.ids import TaskId
from muster.protocol.messages import PrepareTask
from tests.cluster.cards import address, describe, plant, uuid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plant(tmp_path, 1, 4)
    return tmp_path


def prepare(*gpus: str) -> PrepareTask:
    return PrepareTask(TaskId("7.1.0"), "none", None, None, (), {}, 1.0, gpus=gpus)


def check(root: Path, *gpus: str, offered: int | None = None) -> list[Stimulus]:
    posted: list[Stimulus] = []
    config = AgentConfig(gpus="auto" if offered is None else offered, fabric=Fabric(root=root))
    asyncio.run(Gpus(config, posted.append).check(prepare(*gpus)))
    return posted


def test_what_is_there_is_given_and_told(root: Path) -> None:
    (seen,) = check(root, uuid(1, 0), uuid(1, 3))
    assert isinstance(seen, GpusSeen)
    assert [it.pci for it in seen.devices] == [address(number) for number in range(4)]


def test_a_task_with_a_whole_node_costs_no_look(root: Path) -> None:
    assert check(root) == []


def test_a_gpu_that_has_gone_or_is_another_one_is_named(root: Path) -> None:
    describe(root, 2, uuid(2, 2))
    with pytest.raises(GpuGoneError, match=f"there is no GPU {uuid(1, 2)} any more"):
        check(root, uuid(1, 1), uuid(1, 2))


def test_a_gpu_that_no_job_is_given_any_more_is_named(root: Path) -> None:
    (root / f"proc/driver/nvidia/gpus/{address(1)}/information").unlink()
    (root / f"proc/driver/nvidia/gpus/{address(1)}").rmdir()
    with pytest.raises(GpuGoneError, match="there is no GPU"):
        check(root, uuid(1, 1))
    with pytest.raises(GpuGoneError, match=r"\(.*\) is left out by `gpus`"):
        check(root, uuid(1, 3), offered=2)


def test_the_configuration_offers_the_first_of_them(root: Path) -> None:
    (seen,) = check(root, uuid(1, 0), offered=2)
    assert isinstance(seen, GpusSeen)
    assert [it.uuid for it in usable(seen.devices)] == [uuid(1, 0), uuid(1, 1)]
    assert len(seen.devices) == 4

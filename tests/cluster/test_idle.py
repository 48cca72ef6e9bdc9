"""A job that leaves its GPUs alone: real daemons, and a driver that says what the test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import await_running, submit, until

# One GPU, as `pynvml` shows it; how much it is used stands in a file.
DRIVER = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def _refused(*_):
    raise NVMLError("Not Supported")

def nvmlDeviceGetUtilizationRates(_):
    with open({path!r}) as file:
        return SimpleNamespace(gpu=int(file.read()))

nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetPciInfo = lambda _: SimpleNamespace(busId="00000000:F0:00.0")
nvmlDeviceGetName = lambda _: "NVIDIA H100 80GB HBM3"
nvmlDeviceGetUUID = lambda _: "GPU-00000000-0000-0000-0000-000000000001"
nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=80 << 30)
nvmlDeviceGetMigMode = _refused
nvmlDeviceGetComputeRunningProcesses = lambda _: []
"""


@dataclass
class OneGpu(LocalCluster):
    """The agents ask this machine's driver, which is a module of ours."""

    def base_env(self) -> dict[str, str]:
        return {**super().base_env(), "PYTHONPATH": str(self.root.parent / "driver")}

    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), "gpus": "auto"}


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """How much, in percent."""
    file = tmp_path / "used"
    file.write_text("90")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "pynvml.py").write_text(DRIVER.format(path=str(file)))
    return file


@pytest.fixture
def cluster(tmp_path: Path, used: Path) -> Iterator[OneGpu]:
    made = OneGpu(tmp_path / "cluster", agents=1)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def kinds(cluster: LocalCluster, job: str) -> list[str]:
    found = json.loads(cluster.muster("events", job, "--json").stdout)["events"]
    return [event["kind"] for event in found]


@pytest.mark.long
def test_it_is_told_and_then_cancelled_and_one_that_computes_is_not(
    cluster: OneGpu, used: Path, tmp_path: Path
) -> None:
    idle = {"for": "1m", "action": "stop"}
    job = submit(cluster, tmp_path, run="sleep 600", idle=idle)
    await_running(cluster, job)
    # It computes; from here on it does not.
    used.write_text("4")
    until(lambda: "IdleJudged" in kinds(cluster, job), "it is told")
    assert "less than 5 % for 30s" in cluster.muster("show", job).stdout
    used.write_text("5")
    until(lambda: "IdleOver" in kinds(cluster, job), "it is taken back")
    used.write_text("0")
    ended = cluster.muster("wait", "--timeout", "5m", job, check=False).returncode
    assert (ended, cluster.client().job(int(job)).state) == (121, JobState.CANCELLED)
    assert "cancelled by `idle` of the job" in cluster.muster("show", job).stdout
    assert len(cluster.client().job(int(job)).attempts) == 1

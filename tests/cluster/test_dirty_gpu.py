"""A GPU whose memory is not free is not given to the next job: real daemons, a driver of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import submit, until, wait

# One GPU, as `pynvml` shows it; what is in use of it stands in a file, and each look leaves a mark.
DRIVER = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def _refused(*_):
    raise NVMLError("Not Supported")

nvmlMemory_v2 = 2

def nvmlDeviceGetMemoryInfo(_, version=1):
    if version == 1:
        return SimpleNamespace(total=80 << 30, used=1 << 30)
    with open({path!r}) as file:
        used = int(file.read())
    if used:
        open({path!r} + ".looked", "a").close()
    return SimpleNamespace(total=80 << 30, used=used)

nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetPciInfo = lambda _: SimpleNamespace(busId="00000000:F0:00.0")
nvmlDeviceGetName = lambda _: "NVIDIA H100 80GB HBM3"
nvmlDeviceGetUUID = lambda _: "GPU-00000000-0000-0000-0000-000000000001"
nvmlDeviceGetMigMode = nvmlDeviceGetUtilizationRates = _refused
nvmlDeviceGetComputeRunningProcesses = lambda _: []
"""


@dataclass
class OneGpu(LocalCluster):
    """The agent asks this machine's driver, which is a module of ours."""

    def base_env(self) -> dict[str, str]:
        return {**super().base_env(), "PYTHONPATH": str(self.root.parent / "driver")}

    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), "gpus": "auto"}


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """How much, in bytes."""
    file = tmp_path / "used"
    file.write_text("0")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "pynvml.py").write_text(DRIVER.format(path=str(file)))
    return file


@pytest.fixture
def cluster(tmp_path: Path, used: Path) -> Iterator[OneGpu]:
    made = OneGpu(tmp_path / "cluster", agents=1)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def change(used: Path, size: int) -> None:
    """At once, so that nobody reads half of it."""
    new = used.with_suffix(".new")
    new.write_text(str(size))
    new.rename(used)


@pytest.mark.fault(54)
def test_the_next_job_waits_until_the_driver_has_taken_the_memory_back(
    cluster: OneGpu, used: Path, tmp_path: Path
) -> None:
    change(used, 40 << 30)
    job = submit(cluster, tmp_path, run="true", resources={"gpu": 1})
    until(Path(f"{used}.looked").exists, "its node has looked")
    assert cluster.client().job(int(job)).state is JobState.PREPARING
    change(used, 0)
    assert wait(cluster, job) == 0
    assert len(cluster.client().job(int(job)).attempts) == 1


@pytest.mark.long
def test_one_that_stays_dirty_is_given_to_nobody_until_it_is_clean(
    cluster: OneGpu, used: Path, tmp_path: Path
) -> None:
    change(used, 40 << 30)
    retry = {"infra": 2, "backoff": "0s"}
    job = submit(cluster, tmp_path, run="true", resources={"gpu": 1}, retry=retry)
    client = cluster.client()
    # For 50 s it may become free.
    with contextlib.suppress(AssertionError):
        until(lambda: bool(client.job(int(job)).attempts[0].cause), "it is refused")
    until(lambda: client.job(int(job)).state is JobState.QUEUED, "it waits")
    (refused,) = client.job(int(job)).attempts
    assert refused.cause is not None
    assert "has 40 GiB of its memory or more in use" in refused.cause.text
    assert "no process shows that uses it" in cluster.muster("explain", job).stdout
    change(used, 0)
    assert wait(cluster, job) == 0

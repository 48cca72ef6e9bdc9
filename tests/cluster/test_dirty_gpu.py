"""A GPU whose memory is not free is not given to the next job: real daemons, a driver of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.protocol.states import JobState
from tests.cluster.jobs import submit, until, wait
from tests.cluster.planted_gpu import OneGpu


@pytest.mark.fault(54)
def test_the_next_job_waits_until_the_driver_has_taken_the_memory_back(
    one_gpu: OneGpu, tmp_path: Path
) -> None:
    one_gpu.gpu.memory_in_use(40 << 30)
    job = submit(one_gpu, tmp_path, run="true", resources={"gpu": 1})
    until(one_gpu.gpu.looked, "its node has looked")
    assert one_gpu.client().job(int(job)).state is JobState.PREPARING
    one_gpu.gpu.memory_in_use(0)
    assert wait(one_gpu, job) == 0
    assert len(one_gpu.client().job(int(job)).attempts) == 1


@pytest.mark.long
def test_a_dirty_gpu_is_not_assigned_until_it_is_clean(one_gpu: OneGpu, tmp_path: Path) -> None:
    one_gpu.gpu.memory_in_use(40 << 30)
    retry = {"infra": 2, "backoff": "0s"}
    job = submit(one_gpu, tmp_path, run="true", resources={"gpu": 1}, retry=retry)
    client = one_gpu.client()
    # For 50 s it may become free.
    until(lambda: any(each.cause for each in client.job(int(job)).attempts), "it is refused")
    until(lambda: client.job(int(job)).state is JobState.QUEUED, "it waits")
    (refused,) = client.job(int(job)).attempts
    assert refused.cause is not None
    assert "has 40 GiB of its memory or more in use" in refused.cause.text
    assert "no process that uses it is visible" in one_gpu.muster("explain", job).stdout
    one_gpu.gpu.memory_in_use(0)
    assert wait(one_gpu, job) == 0

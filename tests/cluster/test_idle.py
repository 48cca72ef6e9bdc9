"""A job that leaves its GPUs alone: real daemons, and a driver that says what the test wants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import await_running, submit, until
from tests.cluster.planted_gpu import OneGpu


def kinds(cluster: LocalCluster, job: str) -> list[str]:
    found = json.loads(cluster.muster("events", job, "--json").stdout)["events"]
    return [event["kind"] for event in found]


@pytest.mark.long
def test_it_is_reported_and_then_cancelled_and_one_that_computes_is_not(
    one_gpu: OneGpu, tmp_path: Path
) -> None:
    one_gpu.gpu.computes(90)
    idle = {"for": "1m", "action": "stop"}
    job = submit(one_gpu, tmp_path, run="sleep 600", idle=idle)
    await_running(one_gpu, job)
    # It computes; from here on it does not.
    one_gpu.gpu.computes(4)
    until(lambda: "IdleJudged" in kinds(one_gpu, job), "the idle GPUs are reported")
    assert "less than 5 % for 30s" in one_gpu.muster("show", job).stdout
    one_gpu.gpu.computes(5)
    until(lambda: "IdleOver" in kinds(one_gpu, job), "it is taken back")
    one_gpu.gpu.computes(0)
    ended = one_gpu.muster("wait", "--timeout", "5m", job, check=False).returncode
    assert (ended, one_gpu.client().job(int(job)).state) == (121, JobState.CANCELLED)
    assert "cancelled by `idle` of the job" in one_gpu.muster("show", job).stdout
    assert len(one_gpu.client().job(int(job)).attempts) == 1

"""GPUs that a process of no job uses: nobody is given them, and a job that needs them waits."""

from __future__ import annotations

import pytest

from muster.protocol.states import JobState
from orchestrator.core.views.display import job_summary, node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec
from tests.orchestrator.core.scheduling.test_gpus import gpu, join, numbers, part, uuid

BUSY = "is used by process 4711 (python), outside all jobs"


def tell(cluster: Cluster, *busy: int, count: int = 2) -> None:
    """The node says which of its GPUs somebody uses."""
    devices = tuple(gpu(at, "a", busy=BUSY if at in busy else "") for at in range(count))
    cluster.observe("a", devices=devices)


@pytest.mark.parametrize("gpus", [2, None], ids=("its GPUs", "the whole node"))
def test_a_job_waits_with_the_gpu_and_no_process_in_the_reason(gpus: int | None) -> None:
    cluster = Cluster()
    join(cluster, "a", 2)
    tell(cluster, 1)
    # It is not refused as one that never fits: the node has two GPUs.
    assert cluster.node("a").inventory.gpus == 2
    cluster.submit(part(gpus) if gpus else spec())
    assert cluster.shown(1) is JobState.QUEUED
    reason = job_summary(cluster.state, cluster.job(1), cluster.now).reason
    assert f"GPU {gpu(1).pci} is in use outside all jobs" in reason.text
    explained = explain(cluster.state, cluster.job(1), cluster.now)
    assert explained.forecast == "unknown: waits for GPUs that foreign processes use, on a"
    assert explained.starts_by is None
    assert not any(word in str((reason, explained)) for word in ("4711", "python"))
    tell(cluster)
    assert cluster.shown(1) is JobState.PREPARING


def test_a_job_gets_the_gpu_that_is_not_busy() -> None:
    cluster = Cluster()
    join(cluster, "a", 2)
    tell(cluster, 0)
    cluster.submit(part(1))
    assert numbers(cluster, 1) == [1]
    views = {it.uuid: it.fault for it in node_view(cluster.node("a"), cluster.now).devices}
    assert views == {uuid(0): BUSY, uuid(1): None}
    cluster.submit(part(1))
    assert cluster.shown(2) is JobState.QUEUED

"""Disks of nodes that are full: whose fault it is that a rank found no room, and what is shown."""

from __future__ import annotations

import pytest

from muster.protocol.link.control_channel import RankReport
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Retry
from orchestrator.core.scheduling.scheduler import why_waiting
from orchestrator.core.views.display import node_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

FULL = DiskHealth("/var/lib/muster", 0, 64 << 20, full=True)
SAID = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.join("a", "b")
    cluster.submit(spec(retry=Retry(infra=1, user=0)))
    cluster.run_gang(1)
    return cluster


def disks(cluster: Cluster, name: str, *found: DiskHealth) -> None:
    cluster.observe(name, disks=found)


def fail(cluster: Cluster, error: str = SAID, *, disk_full: bool = True) -> None:
    how = ExitStatus(1)
    ranks = (RankReport(0, exit=how, error=error, disk_full=disk_full),)
    cluster.report(task(1, 1, 0), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)


def cause(cluster: Cluster) -> Cause:
    found = cluster.job(1).attempts[0].cause
    assert found is not None
    return found


def test_a_full_disk_is_shown_until_there_is_room(cluster: Cluster) -> None:
    disks(cluster, "a", FULL)
    text = "the disk of /var/lib/muster is full: 0 MiB of 64 MiB free"
    assert node_view(cluster.node("a"), cluster.now).warnings == (text,)
    disks(cluster, "a")
    assert node_view(cluster.node("a"), cluster.now).warnings == ()


@pytest.mark.parametrize("said", [SAID, ""])
def test_a_rank_without_room_on_its_nodes_disk_is_no_fault_of_the_job(
    cluster: Cluster, said: str
) -> None:
    """Its last words may have found no room, either."""
    fail(cluster, said)
    found = cause(cluster)
    assert (found.code, found.outcome, found.node) == (CauseCode.RANK_FAILED, Outcome.INFRA, "a")
    assert found.text.startswith("disk full on a, where the folders of tasks are: rank 0 on a")
    cluster.clean(task(1, 1, 0), exit=ExitStatus(1))
    cluster.beat(60)
    assert cluster.job(1).infra_used == 1
    assert cluster.job(1).attempts[1].tasks[0].node == "b"


def test_without_room_elsewhere_the_nodes_disk_is_not_named(cluster: Cluster) -> None:
    fail(cluster, disk_full=False)
    assert not cause(cluster).text.startswith("disk full on a")


def test_a_full_disk_is_not_why_a_program_fails_otherwise(cluster: Cluster) -> None:
    fail(cluster, "ValueError: no such layer")
    assert cause(cluster).outcome is Outcome.USER


def test_text_that_cannot_be_shown_is_left_out(cluster: Cluster) -> None:
    disks(cluster, "a", DiskHealth("\x1b[31m", full=True))
    assert node_view(cluster.node("a"), cluster.now).warnings == ()


@pytest.mark.parametrize("bad", [FULL, DiskHealth("/d", hangs=True)], ids=("full", "hangs"))
def test_a_node_gets_no_job_until_its_disk_has_room_and_answers(bad: DiskHealth) -> None:
    """A job that goes there all the same uses up its retries, or waits until it is prepared."""
    cluster = Cluster()
    cluster.join("a", "b")
    disks(cluster, "a", bad)
    cluster.submit(spec())
    cluster.submit(spec())
    assert cluster.job(1).attempts[0].tasks[0].node == "b"
    assert cluster.shown(2) is JobState.QUEUED
    why = why_waiting(cluster.state, cluster.job(2))
    assert f"a has no disk for a task: {bad.text}" in why
    disks(cluster, "a", DiskHealth("/d", 90 << 20, 1 << 30))
    assert cluster.job(2).attempts[0].tasks[0].node == "a"

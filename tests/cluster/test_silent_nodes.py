"""Nodes of a running gang that fall silent: without power, or only cut off from the coordinator."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.namespace_cluster import NamespaceCluster
from examples.rig.rig import missing
from muster.http.views import JobView
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, submit, until

HOLD = "echo here > ran.$MUSTER_NODE_RANK; until [ -e go ]; do sleep 0.1; done"
SOAK_S = 600.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NamespaceCluster]:
    if why := missing():
        pytest.skip(why)
    made = NamespaceCluster(tmp_path / "cluster", agents=3)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def run(cluster: NamespaceCluster, folder: Path) -> str:
    job = submit(cluster, folder, nodes=3, run=HOLD, retry={"infra": 0}, stop={"grace": "1s"})
    for rank in range(3):
        await_file(folder / f"ran.{rank}")
    return job


def view(cluster: NamespaceCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


def link(cluster: NamespaceCluster, name: str) -> str:
    return cluster.client().node(name).link


@pytest.mark.root
@pytest.mark.long
def test_a_node_without_power_ends_the_attempt_by_its_neighbours_word(
    three: NamespaceCluster, tmp_path: Path
) -> None:
    job = run(three, tmp_path)
    gone = view(three, job).attempts[0].tasks[2].node
    three.machines[gone].power_off()
    until(lambda: link(three, gone) == "suspect", f"{gone} is unknown")
    until(lambda: view(three, job).attempts[0].cause is not None, "the attempt has a cause")
    cause = view(three, job).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.NODE_LOST, gone)
    assert "an answer from 10.77.0." in cause.text
    until(lambda: three.survivors() == [], "nothing of the job is left anywhere")
    # The devices that the silent node may still use are not given to another attempt.
    assert view(three, job).state is JobState.STOPPING
    three.boot(gone)
    until(lambda: view(three, job).exit_code == 122, "the job has ended, as its node came back")


@pytest.mark.root
@pytest.mark.long
def test_a_node_that_only_the_coordinator_misses_trains_on(
    three: NamespaceCluster, tmp_path: Path
) -> None:
    job = run(three, tmp_path)
    cut = view(three, job).attempts[0].tasks[1].node
    three.machines[cut].cut_from(three.head)
    until(lambda: link(three, cut) == "suspect", f"{cut} is unknown")
    # Nothing happens: for longer than a verdict takes.
    time.sleep(15.0)
    assert view(three, job).attempts[0].cause is None
    three.machines[cut].mend()
    until(lambda: link(three, cut) == "connected", f"{cut} is back")
    (tmp_path / "go").touch()
    assert three.muster("wait", "--timeout", "300s", job, check=False).returncode == 0


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft (package nftables)")
def test_no_false_alarm_in_ten_minutes_of_loss_and_stalls(
    three: NamespaceCluster, tmp_path: Path
) -> None:
    """Lose one packet in a hundred on its way to each machine; every few seconds a machine neither
    sends nor receives for half a second."""
    for machine in (three.head, *three.machines.values()):
        machine.lose(0.01)
    chance = random.Random(7)
    job = run(three, tmp_path)
    links = {name: three.client().node(name).connected_s for name in three.machines}
    assert all(links.values())
    ends = time.monotonic() + SOAK_S
    while time.monotonic() < ends:
        name = chance.choice(sorted(three.machines))
        three.machines[name].cut()
        time.sleep(0.5)
        three.machines[name].mend()
        three.machines[name].lose(0.01)
        assert {link(three, it) for it in three.machines} == {"connected"}
        assert view(three, job).attempts[0].cause is None
        time.sleep(chance.uniform(0.5, 5.0))
    (tmp_path / "go").touch()
    assert three.muster("wait", "--timeout", "300s", job, check=False).returncode == 0
    assert len(view(three, job).attempts) == 1

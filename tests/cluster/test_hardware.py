"""GPUs that fail under running jobs, with real daemons: a file stands for the kernel's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.http.views import NodeView
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState
from tests.cluster.cards import GpuCluster, address, uuid
from tests.cluster.jobs import submit, until, wait
from tests.cluster.test_gpus import gpus_of, hold, let_go


@dataclass
class Failing(GpuCluster):
    """A cluster in which a file of each node stands for the kernel log."""

    def kmsg(self, number: int) -> Path:
        return self.root / f"kmsg-{number}"

    def says(self, number: int, seq: int, text: str) -> None:
        with self.kmsg(number).open("a") as file:
            file.write(f"4,{seq},1000,-;{text}\n")

    def xid(self, number: int, seq: int, xid: int, gpu: int) -> None:
        pci = address(gpu).removesuffix(".0")
        said = "pid='<unknown>', name=<unknown>, it is reported"
        self.says(number, seq, f"NVRM: Xid (PCI:{pci}): {xid}, {said}")

    def _place(self, number: int) -> dict[str, object]:
        self.kmsg(number).touch()
        return {**super()._place(number), "hardware": {"kmsg": str(self.kmsg(number))}}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    made = Failing(tmp_path_factory.mktemp("failing"), agents=2)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def node(cluster: Failing, number: int) -> NodeView:
    return cluster.client().node(f"node-{number}")


def test_the_job_of_a_gpu_that_fails_ends_and_its_node_is_drained_until_it_is_resumed(
    nodes: Failing, tmp_path: Path
) -> None:
    only = {"include": ["node-1"]}
    mine = hold(nodes, tmp_path, "mine", 4, placement=only, retry={"infra": 0})
    yours = hold(nodes, tmp_path, "yours", 4, placement=only)
    assert uuid(1, 0) in gpus_of(tmp_path, "mine")
    gpus_of(tmp_path, "yours")
    nodes.xid(1, 1, 31, 0)
    until(lambda: len(node(nodes, 1).hardware) == 1, "an Xid is shown")
    shown = node(nodes, 1)
    assert (shown.hardware[0].grade, shown.admin, shown.warnings) == ("shown", "active", ())
    nodes.xid(1, 2, 79, 0)
    assert wait(nodes, mine) == 122
    cause = nodes.client().job(int(mine)).attempts[0].cause
    assert cause is not None
    assert cause.code is CauseCode.HARDWARE
    said = f"GPU {address(0)}: Xid 79, the GPU has fallen off the bus (it is reported)"
    assert cause.text == f"node-1: {said}"
    drained = node(nodes, 1)
    assert drained.drain is not None
    assert (drained.admin, drained.drain.user, drained.drain.reason) == ("draining", "muster", said)
    assert nodes.client().job(int(yours)).state is JobState.RUNNING
    # A restart of either side judges nothing again.
    nodes.nodes["node-1"].kill()
    nodes.coordinator.kill()
    nodes.coordinator.start()
    nodes.nodes["node-1"].start()
    nodes.wait_for_nodes()
    let_go(tmp_path, "yours")
    assert wait(nodes, yours) == 0
    assert "Xid 79" in " ".join(nodes.muster("node", "show", "node-1").stdout.split())
    assert "node-1 active" in nodes.muster("node", "resume", "node-1").stderr
    nodes.nodes["node-1"].kill()
    nodes.nodes["node-1"].start()
    nodes.wait_for_nodes()
    assert wait(nodes, submit(nodes, tmp_path, run="true", placement=only)) == 0
    assert (node(nodes, 1).admin, node(nodes, 1).hardware) == ("active", ())


def test_kernel_lines_written_while_no_agent_ran_are_not_missed(
    nodes: Failing, tmp_path: Path
) -> None:
    job = hold(nodes, tmp_path, "missed", 8, placement={"include": ["node-2"]}, retry={"infra": 0})
    gpus_of(tmp_path, "missed")
    nodes.nodes["node-2"].kill()
    nodes.xid(2, 1, 95, 5)
    nodes.nodes["node-2"].start()
    assert wait(nodes, job) == 122
    shown = json.loads(nodes.muster("show", job, "--json").stdout)
    assert shown["attempts"][0]["cause"]["code"] == "hardware_failed"
    assert "Xid 95" in shown["attempts"][0]["cause"]["text"]
    assert "node-2 active" in nodes.muster("node", "resume", "node-2").stderr

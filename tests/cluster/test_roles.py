"""Nodes of one job that differ, and ranks that Muster starts itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import alive, submit, until, wait

FOUR_AND_TWO = {"node-1": 4, "node-2": 2}
PLACES = [(rank, 1 if rank < 4 else 2, rank if rank < 4 else rank - 4) for rank in range(6)]

SAY = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_world_size() == 6
print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
"""
FAILS = """
trap 'exit 0' TERM
echo $$ > pid.$RANK
if [ $RANK = 4 ]; then
    until [ "$(ls pid.* | wc -l)" = 6 ]; do sleep 0.05; done
    echo the fourth gives up >&2; exit 7
fi
while true; do sleep 0.05; done
"""


def ranks_of(cluster: LocalCluster, job: str) -> list[list[int]]:
    (attempt,) = cluster.client().job(int(job)).attempts
    return [[rank.rank for rank in task.ranks] for task in attempt.tasks]


@pytest.mark.torch
def test_four_and_two_under_torchrun(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(SAY)
    job = submit(
        cluster, tmp_path, launcher="torchrun", nodes=2, nproc_per_node=FOUR_AND_TWO, run="say.py"
    )
    assert wait(cluster, job) == 0
    printed = cluster.muster("logs", "--rank", "all", job).stdout
    for rank, node, local in PLACES:
        of = FOUR_AND_TWO[f"node-{node}"]
        line = rf"^\[node-{node} r{rank}\] local rank {local} of {of}$"
        assert re.search(line, printed, re.MULTILINE), printed
    assert ranks_of(cluster, job) == [[0, 1, 2, 3], [4, 5]]


def test_four_and_two_that_we_start(cluster: LocalCluster, tmp_path: Path) -> None:
    script = "sh -c 'echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK'"
    job = submit(
        cluster, tmp_path, launcher="processes", nodes=2, nproc_per_node=FOUR_AND_TWO, run=script
    )
    assert wait(cluster, job) == 0
    for rank, node, local in PLACES:
        of = FOUR_AND_TWO[f"node-{node}"]
        printed = cluster.muster("logs", "--rank", str(rank), "--no-prefix", job).stdout
        assert printed == f"{rank} 6 {local} {of} {node - 1} {node - 1}\n"
    assert ranks_of(cluster, job) == [[0, 1, 2, 3], [4, 5]]


def test_a_rank_that_we_started_fails_and_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(
        cluster,
        tmp_path,
        launcher="processes",
        nodes=2,
        nproc_per_node=FOUR_AND_TWO,
        run=["bash", "-c", FAILS],
        stop={"grace": "20s"},
    )
    assert wait(cluster, job) == 7
    reason = cluster.client().job(int(job)).reason.text
    assert "rank 4 on node-2 exited with code 7: the fourth gives up" in reason
    pids = [int((tmp_path / f"pid.{rank}").read_text()) for rank in range(6)]
    assert [pid for pid in pids if alive(pid)] == []


def test_ranks_that_we_started_outlive_both_daemons(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    script = "echo $$ > pid.$RANK; until [ -e go ]; do sleep 0.05; done; echo done $RANK"
    job = submit(
        own_cluster,
        tmp_path,
        launcher="processes",
        nodes=2,
        nproc_per_node={"launcher": 2, "worker": 1},
        run=["sh", "-c", script],
    )
    until(lambda: len(list(tmp_path.glob("pid.*"))) == 3, "all ranks run")
    daemons = [own_cluster.coordinator, *own_cluster.nodes.values()]
    for daemon in daemons:
        daemon.kill()
    for daemon in daemons:
        daemon.start()
    own_cluster.wait_for_nodes()
    assert own_cluster.client().job(int(job)).state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    printed = own_cluster.muster("logs", "--rank", "all", "--no-prefix", job).stdout
    assert sorted(printed.splitlines()) == ["done 0", "done 1", "done 2"]


def test_the_launcher_runs_something_else(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(
        cluster,
        tmp_path,
        nodes=3,
        run="echo worker $LEVEL",
        env={"LEVEL": "all"},
        roles={"launcher": {"run": "echo launcher $LEVEL", "env": {"LEVEL": "one"}}},
    )
    assert wait(cluster, job) == 0
    printed = cluster.muster("logs", "--rank", "all", "--no-prefix", job).stdout
    assert sorted(printed.splitlines()) == ["launcher one", "worker all", "worker all"]

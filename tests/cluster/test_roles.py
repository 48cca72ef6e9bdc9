"""Nodes of one job that differ, and ranks that Muster starts itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from tests.cluster.jobs import alive, assert_forked, await_running, logs, submit, until, wait

FOUR_AND_TWO = {"node-1": 4, "node-2": 2}
PLACES = [(rank, 1 if rank < 4 else 2, rank if rank < 4 else rank - 4) for rank in range(6)]

SAY = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_world_size() == 6
dist.barrier()  # gloo fails a rank that still connects where another one has left
print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
dist.destroy_process_group()
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
    printed = logs(cluster, "--rank", "all", job).stdout
    for rank, node, local in PLACES:
        of = FOUR_AND_TWO[f"node-{node}"]
        line = rf"^\[node-{node} r{rank}\] local rank {local} of {of}$"
        assert re.search(line, printed, re.MULTILINE), printed
    assert ranks_of(cluster, job) == [[0, 1, 2, 3], [4, 5]]
    assert_forked(cluster, job)


@pytest.mark.torch
def test_roles_with_scripts_of_their_own_under_torchrun(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    meets = 'import torch.distributed as dist\ndist.init_process_group("gloo")\ndist.barrier()\n'
    ends = "dist.destroy_process_group()\n"
    (tmp_path / "leads.py").write_text(f"{meets}print('leads')\n{ends}")
    (tmp_path / "works.py").write_text(f"{meets}print('works')\n{ends}")
    job = submit(
        cluster,
        tmp_path,
        launcher="torchrun",
        nodes=2,
        run="works.py",
        roles={"launcher": {"run": "leads.py"}},
    )
    assert wait(cluster, job) == 0
    printed = logs(cluster, "--rank", "all", "--no-prefix", job).stdout
    assert sorted(printed.splitlines()) == ["leads", "works"]
    assert_forked(cluster, job)


def test_four_and_two_that_we_start(cluster: LocalCluster, tmp_path: Path) -> None:
    script = "sh -c 'echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK'"
    job = submit(
        cluster, tmp_path, launcher="processes", nodes=2, nproc_per_node=FOUR_AND_TWO, run=script
    )
    assert wait(cluster, job) == 0
    for rank, node, local in PLACES:
        of = FOUR_AND_TWO[f"node-{node}"]
        printed = logs(cluster, "--rank", str(rank), "--no-prefix", job).stdout
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
    await_running(own_cluster, job)
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    printed = logs(own_cluster, "--rank", "all", "--no-prefix", job).stdout
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
    printed = logs(cluster, "--rank", "all", "--no-prefix", job).stdout
    assert sorted(printed.splitlines()) == ["launcher one", "worker all", "worker all"]


# Does the same as torch with `env://`, without torch: the other ranks connect to rank 0, and every
# rank learns the addresses of all.
MEETS = """
import json, os, socket, time
found = {name: os.environ.get(name) for name in (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
)}
found["host"] = socket.gethostname()
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    found["met"] = []
    with socket.create_server(place) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            peer, (address, _) = server.accept()
            found["met"].append([peer.makefile().readline().strip(), address])
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    peer.sendall(os.environ["RANK"].encode() + bytes([10]))
print(json.dumps(found))
"""


@pytest.mark.root
def test_four_and_two_meet_across_machines(machines: NamespaceCluster, tmp_path: Path) -> None:
    (tmp_path / "meets.py").write_text(MEETS)
    job = submit(
        machines,
        tmp_path,
        launcher="processes",
        nodes=2,
        nproc_per_node=FOUR_AND_TWO,
        run="meets.py",
        time_limit="10m",
    )
    assert wait(machines, job) == 0, machines.muster("logs", "--rank", "all", job).stdout
    first, second = (machine.address for machine in machines.machines.values())
    printed = logs(machines, "--rank", "all", "--no-prefix", job).stdout
    found = {line["RANK"]: line for line in map(json.loads, printed.splitlines())}
    met = found["0"].pop("met")
    assert found == {
        str(rank): {
            "RANK": str(rank),
            "WORLD_SIZE": "6",
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(FOUR_AND_TWO[f"node-{node}"]),
            "NODE_RANK": str(node - 1),
            "MASTER_ADDR": first,
            "host": f"node-{node}",
        }
        for rank, node, local in PLACES
    }
    assert sorted(met) == [
        [str(rank), first if node == 1 else second] for rank, node, _ in PLACES if rank > 0
    ]


@pytest.mark.root
def test_each_role_runs_its_own_on_its_own_machine(
    machines: NamespaceCluster, tmp_path: Path
) -> None:
    job = submit(
        machines,
        tmp_path,
        launcher="processes",
        nodes=2,
        roles={
            "launcher": {"run": ["sh", "-c", "echo leads $RANK $LEVEL on $(hostname)"]},
            "worker": {
                "run": ["sh", "-c", "echo works $RANK $LEVEL on $(hostname)"],
                "nproc_per_node": 2,
                "env": {"LEVEL": "two"},
            },
        },
        nproc_per_node=1,
        env={"LEVEL": "one"},
    )
    assert wait(machines, job) == 0
    printed = logs(machines, "--rank", "all", "--no-prefix", job).stdout
    assert sorted(printed.splitlines()) == [
        "leads 0 one on node-1",
        "works 1 two on node-2",
        "works 2 two on node-2",
    ]

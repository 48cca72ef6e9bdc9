"""Jobs that share nodes: each has GPUs of its own, whatever becomes of the daemons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from examples.rig.rig import missing
from muster.protocol.states import JobState
from tests.cluster.cards import GPUS, GpuCluster, GpuMachines, describe, uuid
from tests.cluster.jobs import await_file, logs, submit, until, wait
from tests.cluster.test_hosts import blocks

# Says what it was given, then waits for leave.
HOLD = """
file="$MUSTER_JOB_NAME.$MUSTER_NODE_RANK"
env | grep -E '^(CUDA_VISIBLE_DEVICES|PET_|MUSTER_(GPUS|NUM|MASTER|SCRATCH|HOSTFILE))' > "$file.new"
mv "$file.new" "$file"
until [ -e "$MUSTER_JOB_NAME.go" ]; do sleep 0.05; done
"""


@pytest.fixture
def one(tmp_path: Path) -> Iterator[GpuCluster]:
    yield from made(tmp_path, 1)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[GpuCluster]:
    yield from made(tmp_path, 2)


def made(tmp_path: Path, agents: int) -> Iterator[GpuCluster]:
    cluster = GpuCluster(tmp_path / "cluster", agents=agents)
    with cluster:
        yield cluster
    until(lambda: cluster.leftovers() == [], "no process of the cluster is left")


def hold(cluster: LocalCluster, folder: Path, name: str, gpus: object, **more: object) -> str:
    """A job that keeps its GPUs until its file `name.go` is there."""
    own = folder / name
    own.mkdir()
    resources = {} if gpus is None else {"gpu": gpus}
    return submit(cluster, own, name=name, run=HOLD, resources=resources, **more)


def given(folder: Path, name: str, rank: int = 0) -> dict[str, str]:
    lines = await_file(folder / name / f"{name}.{rank}").split()
    return dict(line.split("=", 1) for line in lines)


def gpus_of(folder: Path, name: str, rank: int = 0) -> set[str]:
    return set(given(folder, name, rank)["CUDA_VISIBLE_DEVICES"].split(","))


def let_go(folder: Path, name: str) -> None:
    (folder / name / f"{name}.go").touch()


def test_two_jobs_share_a_node_and_a_third_waits_for_the_first(
    one: GpuCluster, tmp_path: Path
) -> None:
    everything = {uuid(1, number) for number in range(GPUS)}
    first = hold(one, tmp_path, "first", 4)
    second = hold(one, tmp_path, "second", "H100:4")
    environment = given(tmp_path, "first")
    assert (environment["MUSTER_GPUS_PER_NODE"], environment["MUSTER_NUM_GPUS"]) == ("4", "4")
    assert environment["PET_NPROC_PER_NODE"] == "4"
    mine, yours = gpus_of(tmp_path, "first"), gpus_of(tmp_path, "second")
    # Each has a socket of its own.
    assert mine == {uuid(1, number) for number in range(4)}
    assert mine | yours == everything
    # Both daemons restart at once: the node is full, and the coordinator has to learn it from the
    # agent.
    one.coordinator.kill()
    one.nodes["node-1"].kill()
    one.coordinator.start()
    one.nodes["node-1"].start()
    one.wait_for_nodes()
    third = hold(one, tmp_path, "third", 2)
    client = one.client()
    (node,) = client.nodes().nodes
    assert (node.gpus, node.gpus_used, node.jobs) == (8, 8, (int(first), int(second)))
    assert {gpu.uuid for gpu in node.devices if gpu.job == int(first)} == mine
    waits = client.explain(int(third))
    (verdict,) = waits.nodes
    assert verdict.reason.text.startswith(
        f"has 0 of 8 GPUs free: jobs {first} and {second} have the rest"
    )
    assert client.job(int(third)).state is JobState.QUEUED
    let_go(tmp_path, "first")
    assert wait(one, first) == 0
    freed = gpus_of(tmp_path, "third")
    assert len(freed) == 2
    assert freed < mine
    one.nodes["node-1"].kill()
    one.nodes["node-1"].start()
    for name, job in (("second", second), ("third", third)):
        let_go(tmp_path, name)
        assert wait(one, job) == 0
    assert [len(client.job(int(job)).attempts) for job in (first, second, third)] == [1, 1, 1]
    until(lambda: client.nodes().nodes[0].gpus_used == 0, "all GPUs are free")


@pytest.mark.long
def test_gangs_share_their_nodes_and_a_job_for_whole_nodes_waits(
    two: GpuCluster, tmp_path: Path
) -> None:
    first = hold(two, tmp_path, "first", 2, nodes=2)
    second = hold(two, tmp_path, "second", 4, nodes=2)
    for rank in (0, 1):
        mine, yours = gpus_of(tmp_path, "first", rank), gpus_of(tmp_path, "second", rank)
        assert (len(mine), len(yours), mine & yours) == (2, 4, set())
        assert given(tmp_path, "second", rank)["MUSTER_NUM_GPUS"] == "8"
    whole = hold(two, tmp_path, "whole", None)
    explained = two.muster("explain", whole).stdout
    assert f"runs jobs {first} and {second}" in explained
    shown = json.loads(two.muster("node", "show", "node-2", "--json").stdout)
    assert shown["state"]["code"] == "shared"
    assert shown["state"]["text"] == f"runs jobs {first} and {second}; 2 of 8 GPUs free"
    for name, job in (("first", first), ("second", second)):
        let_go(tmp_path, name)
        assert wait(two, job) == 0
    assert "CUDA_VISIBLE_DEVICES" not in given(tmp_path, "whole")
    assert given(tmp_path, "whole")["MUSTER_GPUS_PER_NODE"] == "8"
    let_go(tmp_path, "whole")
    assert wait(two, whole) == 0


@pytest.mark.root
@pytest.mark.long
def test_two_gangs_on_the_same_machines_have_names_ports_and_folders_of_their_own(
    tmp_path: Path,
) -> None:
    if why := missing():
        pytest.skip(why)
    with GpuMachines(tmp_path / "cluster", agents=2) as machines:
        hosts = {name: machine.hosts() for name, machine in machines.machines.items()}
        jobs = {name: hold(machines, tmp_path, name, 2, nodes=2) for name in ("first", "second")}
        mine = {name: given(tmp_path, name) for name in jobs}
        for variable in ("MUSTER_MASTER_PORT", "MUSTER_SCRATCH", "MUSTER_HOSTFILE"):
            assert mine["first"][variable] != mine["second"][variable]
        assert mine["first"]["MUSTER_MASTER_ADDR"] == mine["second"]["MUSTER_MASTER_ADDR"]
        for machine in machines.machines.values():
            assert set(blocks(machine)) == {f"{job}.1" for job in jobs.values()}
        let_go(tmp_path, "first")
        assert wait(machines, jobs["first"]) == 0
        for machine in machines.machines.values():
            # The names of the one that runs stay.
            assert blocks(machine) == [f"{jobs['second']}.1"]
            assert machine.exec("getent", "hosts", "node-1", "node-2").returncode == 0
        third = hold(machines, tmp_path, "third", 6, nodes=2)
        await_file(tmp_path / "third" / "third.1")
        for name, job in (("second", jobs["second"]), ("third", third)):
            let_go(tmp_path, name)
            assert wait(machines, job) == 0
        assert {name: machine.hosts() for name, machine in machines.machines.items()} == hosts
        assert machines.survivors() == []


@pytest.mark.long
def test_a_gpu_that_is_another_one_by_now_is_not_used(one: GpuCluster, tmp_path: Path) -> None:
    """Between two looks one was replaced, and one has gone: the task is refused, then prepared
    again with what is there."""
    describe(one.tree(1), 3, uuid(9, 3))
    job = hold(one, tmp_path, "first", 8, retry={"infra": 2, "backoff": "0s"})
    mine = gpus_of(tmp_path, "first")
    assert uuid(9, 3) in mine
    assert uuid(1, 3) not in mine
    refused, running = one.client().job(int(job)).attempts
    assert refused.cause is not None
    assert f"GPU {uuid(1, 3)} no longer exists" in refused.cause.text
    assert running.tasks[0].gpus is not None
    assert set(running.tasks[0].gpus) == mine
    let_go(tmp_path, "first")
    assert wait(one, job) == 0


@pytest.mark.long
def test_ranks_that_we_start_are_as_many_as_the_gpus_of_the_part(
    one: GpuCluster, tmp_path: Path
) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['LOCAL_WORLD_SIZE'])"
    job = submit(
        one,
        tmp_path,
        launcher="processes",
        run=["python", "-c", code],
        resources={"gpu": 2},
    )
    assert wait(one, job) == 0
    printed = set(logs(one, "--no-prefix", job).stdout.splitlines())
    assert printed == {f"{uuid(1, 0)},{uuid(1, 1)} 2"}

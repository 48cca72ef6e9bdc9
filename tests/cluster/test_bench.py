"""`muster bench allreduce` with a real torchrun and gloo, and what becomes of its jobs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.bench.results import read_line
from tests.cluster.jobs import logs, submit, until

QUICK = ("--iters", "2", "--warmups", "1")


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.timeout(300)
def test_with_and_without_rdma_in_json(cluster: LocalCluster) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = cluster.muster(
        "bench", "allreduce", "--compare-tcp", "--json", "--sizes", "4K..16K", *QUICK
    )
    runs = json.loads(done.stdout)["runs"]
    assert [run["rdma"] for run in runs] == ["preferred", "off"]
    assert runs[0]["nodes"] == runs[1]["nodes"] == ["node-1", "node-2"]
    for run in runs:
        assert run["about"]["backend"] == "gloo"
        assert (run["about"]["ranks"], run["about"]["nodes"]) == (2, 2)
        assert [row["size"] for row in run["rows"]] == [4096, 8192, 16384]
        assert all(row["wrong"] == 0 and row["busbw_gb_s"] >= 0 for row in run["rows"])
        assert all(row["iterations"] == 2 for row in run["rows"])
        assert run["line"]["passed"] is None
        assert "gloo over TCP (torch sees no GPU)" in run["line"]["text"]
    specs = [cluster.client().job(run["job"]).spec for run in runs]
    assert [spec["rdma"] for spec in specs] == ["preferred", "off"]


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_in_words_and_in_the_logs(cluster: LocalCluster) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    nodes = ("--nodes-named", "node-2,node-3")
    done = cluster.muster("bench", "allreduce", *nodes, "--sizes", "64K", *QUICK)
    assert done.stdout.startswith(
        "all-reduce of 2 ranks on 2 nodes, gloo (torch sees no GPU), CPU, torch "
    )
    titles, row, *rest = done.stdout.splitlines()[1:]
    assert titles.split()[:2] == ["SIZE", "ITERS"]
    assert row.split()[:2] == ["64K", "2"]
    assert rest[-1] == "no pass line: gloo over TCP (torch sees no GPU), no HCA is used"
    said = logs(cluster, "last").stdout.splitlines()
    assert [read_line(line) is not None for line in said] == [True, False, True, False]
    assert said[-1] == "# Out of bounds values : 0 OK"
    view = cluster.client().job(cluster.client().find_job("last"))
    assert [task.node for task in view.attempts[-1].tasks] == ["node-2", "node-3"]


def test_a_job_that_fails_is_reported_and_ends_as_wait_does(cluster: LocalCluster) -> None:
    done = cluster.muster(
        "bench", "allreduce", "--sizes", "4K", "--python", "/nowhere/python", check=False
    )
    assert done.returncode == 123
    assert "FAILED" in done.stderr
    assert "muster show" in done.stderr
    assert done.stdout == ""


def test_ctrl_c_cancels_the_job(cluster: LocalCluster, tmp_path: Path) -> None:
    run = "touch up; until [ -e go ]; do sleep 0.05; done"
    blocker = submit(cluster, tmp_path, nodes=1, run=run)
    until((tmp_path / "up").exists, "a node is busy")
    bench = subprocess.Popen(
        cluster.command("bench", "allreduce", "--nodes", "3", "--sizes", "4K"),
        env=cluster.base_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stderr is not None
    try:
        assert "submitted job" in bench.stderr.readline()
        assert "time limit is 1h" in bench.stderr.readline()
        assert "waits: " in bench.stderr.readline()
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=300)
    finally:
        (tmp_path / "go").touch()
    job = cluster.client().job(cluster.client().find_job("bench-allreduce"))
    assert bench.returncode == 130
    assert f"interrupted; job {job.id} was cancelled" in said
    assert job.state.value == "CANCELLED"
    cluster.muster("wait", blocker)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sizes", "1X"), "is no size; write 1M..1G"),
        (("--nodes", "3", "--nodes-named", "a,b"), "--nodes 3 and --nodes-named, which names 2"),
        (("--nodes-named", "a,,b"), "has an empty node name between two commas"),
        (("--compare-tcp", "--rdma", "off"), "so not --rdma off"),
    ],
)
def test_contradictory_options_are_refused(
    cluster: LocalCluster, arguments: tuple[str, ...], said: str
) -> None:
    done = cluster.muster("bench", "allreduce", *arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr

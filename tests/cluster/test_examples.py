"""The examples do what they say, with real daemons and, where they need it, a real torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml

import examples
from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from examples.rig.rig import missing
from muster.spec.slurm.shell_words import split_words
from tests.cluster.jobs import logs, pid_of, until, wait

EXAMPLES = Path(next(iter(examples.__path__)))
torch = pytest.mark.torch

ARGUMENTS = [
    *("--lr", "1e-5", "--flag=off", "--port", "010", "--text", "two words, 'quoted'", 'a "b" c'),
    *("$HOME", "${PATH}", "*", "~", "$1", "tab\\there", "--name=Zoë", "--emoji", "🔥", "--empty"),
    *("", "--", "-x"),
]
THREE_SUMS = [
    "rank 0 of 3 on node 0, local rank 0: sum 3",
    "rank 1 of 3 on node 0, local rank 1: sum 3",
    "rank 2 of 3 on node 1, local rank 0: sum 3",
]


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> LocalCluster:
    """Machines of their own where there can be any, else those that share the loopback."""
    found: LocalCluster = request.getfixturevalue("cluster" if missing() else "machines")
    return found


def submitted(cluster: LocalCluster, folder: Path, *more: str, file: str = "job.yaml") -> str:
    """Submit an example whose folder is `folder`; returns the id."""
    # The snapshot of this one is in a folder that all nodes have.
    there = ("--set", f"workdir={folder}") if folder.name == "ddp" else ()
    given = ("-f", str(folder / file), *there, *more)
    return cluster.muster("submit", *given).stdout.strip()


def printed(cluster: LocalCluster, job: str, *more: str) -> str:
    return logs(cluster, "--rank", "all", "--no-prefix", *more, job).stdout


def seen(cluster: LocalCluster, job: str) -> dict[str, list[str]]:
    """The arguments that each rank has found, by its number."""
    lines = [json.loads(line) for line in printed(cluster, job, "--stdout").splitlines()]
    return {line["rank"]: line["arguments"] for line in lines}


def sums(cluster: LocalCluster, job: str) -> list[str]:
    return sorted(re.findall(r"^rank .*: sum .*", printed(cluster, job), re.MULTILINE))


@pytest.mark.parametrize("launcher", ["processes", pytest.param("torchrun", marks=torch)])
def test_a_long_argument_list_arrives_as_it_was_typed(cluster: LocalCluster, launcher: str) -> None:
    folder = EXAMPLES / "arguments"
    typed = yaml.safe_load((folder / "job.yaml").read_text())["run"]
    assert split_words(typed) == ["show_arguments.py", *ARGUMENTS]
    as_list = json.dumps(["show_arguments.py", *ARGUMENTS], ensure_ascii=False)
    common = ("--set", f"launcher={launcher}", "--nproc-per-node", "1")
    jobs = [
        submitted(cluster, folder, *common, "--nodes", "2"),
        submitted(cluster, folder, *common, "--nodes", "1", "--set", f"run={typed}"),
        submitted(cluster, folder, *common, "--nodes", "1", "--set", f"run={as_list}"),
        cluster.muster(
            *("submit", "--set", f"workdir={folder}", *common),
            *("--", "python", "show_arguments.py", *ARGUMENTS),
        ).stdout.strip(),
    ]
    assert [wait(cluster, job) for job in jobs] == [0] * 4
    assert seen(cluster, jobs[0]) == {"0": ARGUMENTS, "1": ARGUMENTS}
    assert [seen(cluster, job) for job in jobs[1:]] == [{"0": ARGUMENTS}] * 3


@torch
@pytest.mark.parametrize("file", ["processes.yaml", "torchrun.yaml"])
def test_a_script_that_knows_only_env(cluster: LocalCluster, file: str) -> None:
    job = submitted(cluster, EXAMPLES / "env", file=file)
    assert wait(cluster, job) == 0, cluster.muster("logs", "--rank", "all", job).stdout
    assert sums(cluster, job) == THREE_SUMS


@pytest.mark.root
def test_arguments_arrive_on_other_machines(machines: NamespaceCluster) -> None:
    job = submitted(machines, EXAMPLES / "arguments")
    assert wait(machines, job) == 0
    assert seen(machines, job) == {str(rank): ARGUMENTS for rank in range(4)}


@torch
@pytest.mark.root
def test_a_script_that_knows_only_env_across_machines(machines: NamespaceCluster) -> None:
    job = submitted(machines, EXAMPLES / "env", file="processes.yaml")
    assert wait(machines, job) == 0, machines.muster("logs", "--rank", "all", job).stdout
    assert sums(machines, job) == THREE_SUMS


@torch
def test_training_goes_on_from_its_snapshot_after_a_rank_was_killed(
    nodes: LocalCluster, tmp_path: Path
) -> None:
    folder = shutil.copytree(EXAMPLES / "ddp", tmp_path / "ddp")
    job = submitted(nodes, folder)
    until(lambda: "epoch 3," in printed(nodes, job), "epoch 3 trained")
    os.kill(pid_of(nodes, job, 1), signal.SIGKILL)
    assert wait(nodes, job) == 0
    first, second = nodes.client().job(int(job)).attempts
    assert first.cause is not None
    assert "rank 1" in first.cause.text
    assert "SIGKILL" in first.cause.text
    assert second.cause is not None
    ended = printed(nodes, job)
    resumed = {int(n) for n in re.findall(r"resuming from the snapshot of epoch (\d+)", ended)}
    assert len(resumed) == 1
    (epoch,) = resumed
    assert epoch >= 2
    assert f"rank 0: epoch {epoch}," not in ended
    assert "rank 1: epoch 20," in ended


@torch
@pytest.mark.long
@pytest.mark.timeout(900)
def test_pi_on_two_nodes_with_twenty_processes_each(nodes: LocalCluster) -> None:
    more = ("--nodes", "2", "--nproc-per-node", "20", "--set", "run=pi.py 4000000 --rounds 1")
    job = submitted(nodes, EXAMPLES / "pi", *more, "--time-limit", "14m")
    done = nodes.muster("wait", "--timeout", "14m", job, check=False)
    assert done.returncode == 0
    ended = printed(nodes, job)
    assert "pi = 3.14159265359" in ended
    ranks = re.findall(r"^rank (\d+) of 40 on node ([01]), local rank (\d+)$", ended, re.MULTILINE)
    assert sorted((int(r), int(n), int(k)) for r, n, k in ranks) == [
        (rank, rank // 20, rank % 20) for rank in range(40)
    ]

"""Jobs held, changed, signalled, explained and run again, by real daemons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.local_cluster import LocalCluster
from tests.cluster.jobs import await_file, submit, until, wait

LISTENS = """
import os, signal, sys, time
me = os.environ.get("RANK", os.environ.get("MUSTER_NODE_RANK"))
def heard(number, _):
    with open(f"heard-{me}", "a") as file:
        file.write(f"{signal.Signals(number).name}\\n")
signal.signal(signal.SIGUSR1, heard)
signal.signal(signal.SIGUSR2, heard)
with open(f"ready-{me}", "w") as file:
    file.write("yes\\n")
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def shown(cluster: LocalCluster, job: str) -> Any:
    return json.loads(cluster.muster("show", job, "--json").stdout)


def listening(cluster: LocalCluster, tmp_path: Path, ranks: int, **job: Any) -> str:
    (tmp_path / "listens.py").write_text(LISTENS)
    number = submit(cluster, tmp_path, run=["/usr/bin/env", "python3", "listens.py"], **job)
    for rank in range(ranks):
        await_file(tmp_path / f"ready-{rank}")
    until(lambda: shown(cluster, number)["state"] == "RUNNING", "the job runs")
    return number


def let_go(cluster: LocalCluster, tmp_path: Path, job: str) -> int:
    (tmp_path / "go").touch()
    return wait(cluster, job)


def test_a_signal_to_all_and_to_one(cluster: LocalCluster, tmp_path: Path) -> None:
    job = listening(cluster, tmp_path, 4, nodes=2, launcher="processes", nproc_per_node=2)
    assert f"job {job}: SIGUSR1 to its ranks on" in cluster.muster("signal", job, "USR1").stderr
    for rank in range(4):
        assert await_file(tmp_path / f"heard-{rank}") == "SIGUSR1\n"
    answer = json.loads(cluster.muster("signal", job, "12", "--rank", "2", "--json").stdout)
    assert (answer["signal"], len(answer["nodes"])) == ("SIGUSR2", 1)
    until(lambda: (tmp_path / "heard-2").read_text().count("\n") == 2, "rank 2 has heard")
    received = [(tmp_path / f"heard-{rank}").read_text() for rank in range(4)]
    assert received == ["SIGUSR1\n", "SIGUSR1\n", "SIGUSR1\nSIGUSR2\n", "SIGUSR1\n"]
    refused = cluster.muster("signal", job, "KILL", check=False)
    assert refused.returncode == 2
    assert f"muster cancel --force {job}" in refused.stderr
    assert let_go(cluster, tmp_path, job) == 0
    assert "SIGUSR1 sent to all ranks by" in cluster.muster("events", job).stdout


def test_a_signal_to_plain_commands(cluster: LocalCluster, tmp_path: Path) -> None:
    job = listening(cluster, tmp_path, 2, nodes=2)
    cluster.muster("signal", job, "SIGUSR2", "--rank", "1")
    assert await_file(tmp_path / "heard-1") == "SIGUSR2\n"
    assert not (tmp_path / "heard-0").exists()
    assert let_go(cluster, tmp_path, job) == 0


def test_held_explained_changed_and_run_again(cluster: LocalCluster, tmp_path: Path) -> None:
    first = listening(cluster, tmp_path, 3, nodes=3, time_limit="1h")
    second = submit(cluster, tmp_path, name="second", run=["/bin/true"], nodes=2)
    third = submit(cluster, tmp_path, name="third", run=["/bin/true"], time_limit="10m")
    cluster.muster("hold", second, "--reason", "wait for data")
    assert "HELD" in cluster.muster("ps").stdout
    why = cluster.muster("explain", third).stdout
    assert f"runs job {first}" in why
    assert f"at the latest: job {first} ends on" in why
    cluster.muster("set", third, "priority=80", "time_limit=none")
    assert shown(cluster, third)["priority"] == 80
    assert let_go(cluster, tmp_path, first) == 0
    assert wait(cluster, third) == 0
    assert shown(cluster, second)["state"] == "HELD"
    cluster.muster("release", second)
    assert wait(cluster, second) == 0
    node = shown(cluster, third)["attempts"][0]["tasks"][0]["node"]
    again = cluster.muster("rerun", third, "--exclude", node, "--set", "nodes=2").stdout.strip()
    assert wait(cluster, again) == 0
    view = shown(cluster, again)
    assert view["rerun_of"] == int(third)
    assert node not in [task["node"] for task in view["attempts"][0]["tasks"]]
    assert "the only 2 free nodes that fit" in cluster.muster("explain", again).stdout


def test_the_time_limit_of_a_running_job_is_moved(cluster: LocalCluster, tmp_path: Path) -> None:
    stop = {"signal": "SIGTERM", "grace": "5s", "warn": "USR1@59m"}
    job = listening(cluster, tmp_path, 1, time_limit="2h", stop=stop)
    cluster.muster("set", job, "time_limit=1h")
    cluster.muster("set", job, "time_limit=59m30s")
    # Thirty seconds after the start the warning is due; a shorter limit brings it at once.
    refused = cluster.muster("set", job, "time_limit=1s", check=False)
    assert refused.returncode in (2, 125)
    assert "time limit" in refused.stderr
    cluster.muster("set", job, "time_limit=59m1s")
    assert await_file(tmp_path / "heard-0") == "SIGUSR1\n"
    assert let_go(cluster, tmp_path, job) == 0

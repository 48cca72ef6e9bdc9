"""Jobs that write more than the log store has room for, beside honest ones, with real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.local_cluster import LocalCluster
from muster.client import LogQuery
from muster.http.views import LogRecord
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_running, log_of, submit, until, wait
from tests.small_disk import small_disk

MIB = 1 << 20
GREEDY = """
import os, sys, time
block = b"x" * 65535 + b"\\n"
for _ in range(16 * int(sys.argv[1])):  # MiB
    os.write(1, block)
open("written", "w").close()
while not os.path.exists("end"):
    time.sleep(0.05)
"""
HONEST = """
n=0
until [ -e stop ]; do n=$((n + 1)); echo line $n; sleep 0.1; done
echo honest end
"""


@contextmanager
def storing(tmp_path: Path, **settings: Any) -> Iterator[LocalCluster]:
    """Two nodes, and a coordinator with these settings of `job_logs`."""
    made = LocalCluster(tmp_path / "cluster", agents=2, env=PORTS)
    path = made.root / "config" / "coordinator.yaml"
    config = yaml.safe_load(path.read_text())
    config["job_logs"] = settings
    path.write_text(yaml.safe_dump(config))
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def records(cluster: LocalCluster, job: str) -> list[LogRecord]:
    found = cluster.client().logs(int(job), LogQuery(stream="stdout"))
    return [record for record in found if isinstance(record, LogRecord)]


def lines(cluster: LocalCluster, job: str) -> int:
    return sum((record.data or "").count("\n") for record in records(cluster, job))


def gaps(cluster: LocalCluster, job: str) -> list[str]:
    return [record.gap for record in records(cluster, job) if record.gap is not None]


def stored(logs: Path, job: str) -> int:
    files = (file for file in (logs / job).rglob("*") if file.is_file())
    return sum(file.stat().st_blocks * 512 for file in files)


def on(node: str, folder: Path, **job: Any) -> dict[str, Any]:
    folder.mkdir()
    return {"placement": {"include": [node]}, "workdir": str(folder), **job}


def grows(cluster: LocalCluster, job: str) -> None:
    before = lines(cluster, job)
    until(lambda: lines(cluster, job) > before, f"the lines of job {job} go on arriving")


def test_a_hole_in_a_log_costs_nothing_and_is_one_line(tmp_path: Path) -> None:
    with storing(tmp_path) as cluster:
        script = "echo before; truncate -s 100G /proc/self/fd/1; echo after; touch written\n"
        script += "until [ -e end ]; do sleep 0.05; done"
        job = submit(cluster, tmp_path, **on("node-1", tmp_path / "sparse", run=script))
        until((tmp_path / "sparse" / "written").exists, "it has made its hole")
        until(lambda: "after" in cluster.muster("logs", job).stdout, "what follows has arrived")
        (tmp_path / "sparse" / "end").touch()
        assert wait(cluster, job) == 0
        assert log_of(cluster, job).replace("\0", "") == "before\nafter\n"
        shown = cluster.muster("logs", job).stderr
        assert shown.count("bytes were never written") == 1
        found = records(cluster, job)
        assert found[-1].offset + found[-1].len == (100 << 30) + len("after\n")
        assert stored(cluster.root / "state" / "coordinator" / "logs", job) < MIB


def test_beyond_its_bound_a_job_goes_on_and_its_log_has_a_gap(tmp_path: Path) -> None:
    with storing(tmp_path, job_bytes_max=4 * MIB) as cluster:
        (tmp_path / "greedy.py").write_text(GREEDY)
        run = f"python3 {tmp_path}/greedy.py 20; echo greedy end"
        greedy = submit(cluster, tmp_path, **on("node-1", tmp_path / "greedy", run=run))
        honest = submit(cluster, tmp_path, **on("node-2", tmp_path / "honest", run=HONEST))
        until((tmp_path / "greedy" / "written").exists, "it has written everything")
        until(lambda: gaps(cluster, greedy) != [], "readers see the gap")
        grows(cluster, honest)
        assert cluster.client().job(int(greedy)).state is JobState.RUNNING
        for name in ("greedy/end", "honest/stop"):
            (tmp_path / name).touch()
        assert wait(cluster, greedy) == 0
        assert wait(cluster, honest) == 0
        assert log_of(cluster, honest).endswith("honest end\n")
        log_of(cluster, greedy)
        (gap,) = gaps(cluster, greedy)
        assert "job_logs.task_bytes_max" in gap
        assert stored(cluster.root / "state" / "coordinator" / "logs", greedy) < 4 * MIB


@pytest.mark.root
def test_a_greedy_job_waits_and_honest_ones_go_on(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    with (
        small_disk(tmp_path / "disk", 64 * MIB) as disk,
        storing(tmp_path, dir=str(disk / "logs"), free_bytes_min=8 * MIB) as cluster,
    ):
        logs = disk / "logs"
        honest = submit(cluster, tmp_path, **on("node-2", tmp_path / "honest", run=HONEST))
        await_running(cluster, honest)
        run = f"python3 {tmp_path}/greedy.py 100"
        greedy = submit(cluster, tmp_path, **on("node-1", tmp_path / "greedy", run=run))
        until(
            lambda: any("more than its share" in gap for gap in gaps(cluster, greedy)),
            "the greedy job waits",
        )
        until((tmp_path / "greedy" / "written").exists, "it goes on writing on its node")
        grows(cluster, honest)
        grows(cluster, honest)
        assert stored(logs, greedy) < 56 * MIB
        assert cluster.client().job(int(greedy)).state is JobState.RUNNING
        assert cluster.client().job(int(honest)).state is JobState.RUNNING
        waits = f'"waiting_jobs":[{greedy}]'
        log = cluster.coordinator.log
        until(lambda: waits in log.read_text().replace(" ", ""), "the log names the job")
        cluster.muster("cancel", greedy)
        wait(cluster, greedy)
        until(lambda: stored(logs, greedy) < MIB, "its logs have made room")
        assert cluster.muster("logs", greedy, check=False).returncode != 0
        grows(cluster, honest)
        # Another job has all the room that it needs now.
        next_run = "head -c 20000000 /dev/zero | tr '\\0' 'y'; echo; echo next end"
        following = submit(cluster, tmp_path, **on("node-1", tmp_path / "next", run=next_run))
        assert wait(cluster, following) == 0
        assert log_of(cluster, following).endswith("next end\n")
        (tmp_path / "honest" / "stop").touch()
        assert wait(cluster, honest) == 0
        assert log_of(cluster, honest).endswith("honest end\n")

"""The command line against real daemons: what is seen of nodes, of a job and of its events."""

from __future__ import annotations

import json
from pathlib import Path

from examples.local_cluster import LocalCluster
from tests.cluster.jobs import logs, submit, until


def test_a_node_is_shown_with_the_job_on_it(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run="touch here; sleep 1000", nodes=3)
    until((tmp_path / "here").exists, "the job runs")
    shown = cluster.muster("node", "show", "node-2").stdout
    assert f"  job       {job} (" in shown
    view = json.loads(cluster.muster("node", "show", "node-2", "--json").stdout)
    assert (view["link"], view["job"]) == ("connected", int(job))
    assert view["connected_s"] >= 0
    assert any(
        address.startswith(view["address"])
        for interface in view["interfaces"]
        for address in interface["addresses"]
    )
    row = next(
        line for line in cluster.muster("ps").stdout.splitlines() if f" {job} " in f" {line}"
    )
    assert " 3 " in row
    cluster.muster("cancel", "--wait", job)
    watched = cluster.muster("ps", "-w", "-n", "1")
    assert "CANCELLED" in watched.stdout, "nothing is left to watch"


def test_events_are_followed_to_the_end_of_the_job(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run="exit 3")
    followed = cluster.muster("events", "-f", job).stdout.splitlines()
    assert "JobSubmitted" in followed[0]
    assert "JobEnded" in followed[-1]
    listed = json.loads(cluster.muster("events", job, "--json").stdout)["events"]
    assert len(listed) == len(followed)
    assert cluster.muster("attach", job, check=False).returncode == 3


def test_a_dry_run_knows_the_nodes(cluster: LocalCluster, tmp_path: Path) -> None:
    fits = cluster.muster("submit", "--dry-run", "--nodes", "3", "--", "true")
    assert "it fits the known nodes" in fits.stderr
    unfit = cluster.muster("submit", "--dry-run", "--nodes", "9", "--", "true", check=False)
    assert (unfit.returncode, "nodes: 9" in unfit.stdout) == (123, True)
    assert "does not fit" in unfit.stderr


def test_a_batch_script_of_slurm_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    (tmp_path / "rank.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --job-name=old --nodes=2 --ntasks-per-node=2\n"
        f"#SBATCH --chdir={tmp_path}\n"
        "#SBATCH --partition=gpu\n"
        "srun python rank.py\n"
    )
    done = cluster.muster("submit", "--from-sbatch", str(script), "--wait")
    assert "--partition=gpu is ignored" in done.stderr
    out = logs(cluster, "--rank", "all", "--no-prefix", "old").stdout
    assert sorted(out.splitlines()) == [f"rank {rank}" for rank in range(4)]

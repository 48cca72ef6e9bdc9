"""Code that lies only on the machine of its author runs on two nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from examples.local_cluster import LocalCluster
from tests.cluster.jobs import log_of, wait

TRAIN = """
import os, pathlib
import lib.model
here = pathlib.Path.cwd()
print("rank", os.environ["MUSTER_NODE_RANK"], "in", os.environ["MUSTER_WORKDIR"] == str(here))
print("files", sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_file()))
print("answer", lib.model.ANSWER, os.readlink("link"), os.access("run.sh", os.X_OK))
pathlib.Path("lib/model.py").write_text("ANSWER = 'changed'")
"""


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    """A folder that no node has."""
    folder = tmp_path / "laptop"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "lib/model.py").write_text("ANSWER = 42\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("lib/model.py")
    (folder / ".gitignore").write_text("*.log\n__pycache__/\n")
    (folder / "old.log").write_text("x")
    job = {
        "name": "shipped",
        "nodes": 2,
        "launcher": "processes",
        "workdir": ".",
        "run": "train.py",
        "env": {"PYTHONDONTWRITEBYTECODE": "1"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder


def muster(cluster: LocalCluster, cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `muster` with an index of its own."""
    env = {**cluster.base_env(), "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        cluster.command(*words),
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=300,
    )


def test_the_code_of_a_folder_runs_on_two_nodes(
    cluster: LocalCluster, laptop: Path, tmp_path: Path
) -> None:
    job_file, cache = str(laptop / "job.yaml"), tmp_path / "cache"
    sent = muster(cluster, cache, "submit", "-f", job_file)
    assert sent.returncode == 0, sent.stderr
    assert "6 files" in sent.stderr
    job = sent.stdout.strip()
    assert wait(cluster, job) == 0
    log = log_of(cluster, job, "--rank", "all")
    for rank in (0, 1):
        assert f"rank {rank} in True" in log
    files = [".gitignore", "job.yaml", "lib/model.py", "link", "run.sh", "train.py"]
    assert log.count(f"files {files}") == 2
    assert log.count("answer 42 lib/model.py True") == 2
    # A job changes only its own copy: the next job starts with the original bytes, and nothing is
    # sent again.
    again = muster(cluster, cache, "rerun", job)
    assert wait(cluster, again.stdout.strip()) == 0
    assert "answer 42" in log_of(cluster, again.stdout.strip())
    same = muster(cluster, cache, "submit", "-f", job_file)
    assert "sent" not in same.stderr
    assert same.returncode == 0, same.stderr
    assert wait(cluster, same.stdout.strip()) == 0


def test_one_line_changed_sends_one_chunk(
    cluster: LocalCluster, laptop: Path, tmp_path: Path
) -> None:
    job_file, cache = str(laptop / "job.yaml"), tmp_path / "cache"
    (laptop / "large.bin").write_bytes(os.urandom(100_000))
    first = muster(cluster, cache, "submit", "-f", job_file, "--set", "nodes=1")
    assert first.returncode == 0, first.stderr
    (laptop / "lib/model.py").write_text("ANSWER = 4711\n")
    second = muster(cluster, cache, "submit", "-f", job_file, "--set", "nodes=1")
    assert "in 1 new piece" in second.stderr, second.stderr
    job = second.stdout.strip()
    assert wait(cluster, job) == 0
    assert "answer 4711" in log_of(cluster, job)
    (laptop / "lib/model.py").write_text("ANSWER = 4712\n")
    third = muster(cluster, cache, "rerun", job, "--ship")
    assert "in 1 new piece" in third.stderr, third.stderr
    assert wait(cluster, third.stdout.strip()) == 0
    assert "answer 4712" in log_of(cluster, third.stdout.strip())
    elsewhere = muster(cluster, tmp_path / "other", "rerun", job, "--ship")
    assert elsewhere.returncode != 0
    assert "not sent from this machine" in elsewhere.stderr
    (laptop / "lib/model.py").unlink()
    fewer = muster(cluster, cache, "rerun", job, "--ship")
    assert "new piece" not in fewer.stderr, fewer.stderr
    assert wait(cluster, fewer.stdout.strip()) != 0
    laptop.rename(tmp_path / "moved")
    gone = muster(cluster, cache, "rerun", job, "--ship")
    assert gone.returncode != 0
    assert f"the folder {laptop}, from which job {job} was sent, is gone" in gone.stderr
    assert wait(cluster, first.stdout.strip()) == 0
    assert "answer 42" in log_of(cluster, first.stdout.strip())

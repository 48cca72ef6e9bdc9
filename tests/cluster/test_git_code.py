"""Code that lies only in a git repository runs on two nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.local_cluster import LocalCluster
from muster.protocol.outcome import EXIT_NEVER_STARTED
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import log_of, until, wait
from tests.git_server import GitServer, git_server

TRAIN = """
import os, pathlib
import lib
here = pathlib.Path.cwd()
print("rank", os.environ["MUSTER_NODE_RANK"], "in", os.environ["MUSTER_WORKDIR"] == str(here))
print("answer", lib.ANSWER)
(here / "lib.py").write_text("ANSWER = 'changed'")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(tmp_path_factory.mktemp("git")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(server: GitServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes whose site trusts the server."""
    env = {**PORTS, "MUSTER_AGENT_GIT_CONFIG": str(server.config)}
    made = LocalCluster(tmp_path_factory.mktemp("cluster"), agents=2, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def muster(
    cluster: LocalCluster, server: GitServer, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run `muster` on a laptop that trusts the server."""
    return subprocess.run(
        cluster.command(*words),
        cwd=cluster.empty,
        capture_output=True,
        text=True,
        check=False,
        env={**cluster.base_env(), "GIT_SSL_CAINFO": str(server.ca), "HOME": str(server.root)},
        timeout=300,
    )


def job_file(folder: Path, server: GitServer, name: str, **keys: object) -> str:
    job = {
        "name": name,
        "nodes": 2,
        "launcher": "processes",
        "workdir": {"git": f"{server.url}/{name}.git", **keys},
        "run": "train.py",
        "retry": {"infra": 0},
        "env": {"PYTHONDONTWRITEBYTECODE": "1"},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return str(file)


def test_a_commit_runs_on_two_nodes_and_again(
    cluster: LocalCluster, server: GitServer, tmp_path: Path
) -> None:
    commit = server.repository("plain", **{"train.py": TRAIN, "lib.py": "ANSWER = 42\n"})
    file = job_file(tmp_path, server, "plain", ref="main")
    sent = muster(cluster, server, "submit", "-f", file)
    assert sent.returncode == 0, sent.stderr
    assert f"code: {server.url}/plain.git at {commit}, main" in sent.stderr
    job = sent.stdout.strip()
    assert wait(cluster, job) == 0
    log = log_of(cluster, job, "--rank", "all")
    assert [line for line in log.splitlines() if "answer" in line] == ["answer 42"] * 2
    for rank in (0, 1):
        assert f"rank {rank} in True" in log
    shown = muster(cluster, server, "show", job).stdout
    assert f"{server.url}/plain.git at {commit}" in shown
    newer = server.push("plain", **{"lib.py": "ANSWER = 43\n"})
    again = muster(cluster, server, "rerun", job).stdout.strip()
    assert wait(cluster, again) == 0
    assert "answer 42" in log_of(cluster, again)
    dry = muster(cluster, server, "submit", "-f", file, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"commit: {newer}" in dry.stdout
    branch = muster(cluster, server, "rerun", job, "--set", "workdir.ref=main")
    assert branch.returncode != 0
    assert "names no commit" in branch.stderr
    full = muster(cluster, server, "rerun", job, "--set", f"workdir.ref={newer}").stdout.strip()
    assert wait(cluster, full) == 0
    assert "answer 43" in log_of(cluster, full)


def test_a_commit_that_is_gone_is_a_failure_with_its_name(
    cluster: LocalCluster, server: GitServer, tmp_path: Path
) -> None:
    server.repository("gone", **{"train.py": "print(1)\n"})
    file = job_file(tmp_path, server, "gone", ref="f" * 40)
    job = muster(cluster, server, "submit", "-f", file).stdout.strip()
    assert wait(cluster, job) == EXIT_NEVER_STARTED
    view = cluster.client().job(int(job))
    cause = view.attempts[-1].cause
    assert cause is not None
    assert (cause.kind, cause.refusal) == ("code_not_fetched", "fetch_failed")
    assert view.reason is not None
    assert "git fetch of" in view.reason.text
    assert "not our ref" in view.reason.text
    assert "submit again for the newest" in view.reason.text

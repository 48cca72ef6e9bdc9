"""Code in a git repository behind ssh runs on two nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from agent.core.git_fetch import SECRETS
from examples.local_cluster import Daemon, LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import log_of, until, wait
from tests.git_server import GitServer, git_server
from tests.ssh_server import MISSING, SshServer, ssh_server

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@dataclass
class Cluster(LocalCluster):
    """Agents and commands see the accounts of an ssh server."""

    ssh: SshServer | None = None

    def command(self, *args: str) -> list[str]:
        assert self.ssh is not None
        return [*self.ssh.within(), *super().command(*args)]

    def _daemon(self, name: str, argv: list[str]) -> Daemon:
        assert self.ssh is not None
        return super()._daemon(name, [*self.ssh.within(), *argv])


@pytest.fixture
def server() -> Iterator[SshServer]:
    with ssh_server() as made:
        yield made


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "git") as made:
        yield made


@pytest.fixture
def cluster(server: SshServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", agents=2, env=PORTS, ssh=server)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_a_branch_behind_ssh_runs_on_two_nodes(
    cluster: Cluster, server: SshServer, repositories: GitServer, tmp_path: Path
) -> None:
    commit = repositories.repository("plain", **{"train.py": "import lib; print(lib.ANSWER)\n"})
    commit = repositories.push("plain", **{"lib.py": "ANSWER = 42\n"})
    # The user who submits has a key for the host, and the nodes have another place for it.
    (server.ssh / "config").write_text(f"Host 127.0.0.1\nIdentityFile {server.key}\n")
    job = {
        "name": "ssh",
        "nodes": 2,
        "launcher": "processes",
        "workdir": {"git": f"{server.url}{repositories.root}/plain.git", "secret": "deploy"},
        "run": "train.py",
        "retry": {"infra": 0},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    sent = cluster.muster("submit", "-f", str(file))
    assert f"/plain.git at {commit}" in sent.stderr
    failed = sent.stdout.strip()
    assert wait(cluster, failed) != 0
    reason = cluster.client().job(int(failed)).reason
    assert reason is not None
    assert "user root has no secret deploy on this node" in reason.text
    secret = server.home / SECRETS / "deploy"
    secret.parent.mkdir(parents=True)
    shutil.copy(server.key, secret)
    again = cluster.muster("rerun", failed).stdout.strip()
    assert wait(cluster, again) == 0
    assert log_of(cluster, again, "--rank", "all").split() == ["42", "42"]

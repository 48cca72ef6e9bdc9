"""The script that fetches code with git, run against a real ssh server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.core import git_fetch
from agent.core.inputs import TaskPaths
from muster.protocol.git_code import GitCode
from tests.git_server import GitServer, git_server
from tests.ssh_server import MISSING, SshServer, ssh_server

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(tmp_path_factory.mktemp("git")) as made:
        yield made


@pytest.fixture
def server() -> Iterator[SshServer]:
    with ssh_server() as made:
        yield made


def fetch(
    server: SshServer, repositories: GitServer, code: GitCode, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the script as a shim does, for root whose home is the server's."""
    (folder / "code").mkdir(parents=True)
    (folder / "scratch").mkdir()
    paths = TaskPaths(str(folder / "code"), str(folder / "scratch"), "/output", "/hostfile")
    made = git_fetch.fetch_program(code, paths, str(repositories.config))
    assert made is not None
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(server.home), "USER": "root"}
    return subprocess.run(
        [*server.within(), *made.argv],
        cwd=folder / "code",
        env={**base, **made.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def as_secret(server: SshServer) -> None:
    """Put the key into root's secrets, as the file `host`."""
    file = server.home / git_fetch.SECRETS / "host"
    file.parent.mkdir(parents=True)
    shutil.copy(server.key, file)


def test_a_secret_is_the_private_key(
    server: SshServer, repositories: GitServer, tmp_path: Path
) -> None:
    commit = repositories.repository("secret", **{"train.py": "print(1)\n"})
    code = GitCode(f"{server.url}{repositories.root}/secret.git", commit, secret="host")
    as_secret(server)
    done = fetch(server, repositories, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code" / "train.py").read_text() == "print(1)\n"
    assert "Accepted publickey for root" in server.log.read_text()
    without = fetch(server, repositories, replace(code, secret=""), tmp_path / "without")
    assert without.returncode != 0
    assert "Permission denied (publickey)" in without.stderr
    server.know(known=False)
    unknown = fetch(server, repositories, code, tmp_path / "unknown")
    assert unknown.returncode != 0
    assert "Host key verification failed" in unknown.stderr


def test_ssh_reads_the_configuration_and_keys_of_the_user(
    server: SshServer, repositories: GitServer, tmp_path: Path
) -> None:
    commit = repositories.repository("own", x="x")
    config = f"Host forge\nHostName 127.0.0.1\nPort {server.port}\nIdentityFile {server.key}\n"
    (server.ssh / "config").write_text(config)
    code = GitCode(f"root@forge:{repositories.root}/own.git", commit)
    done = fetch(server, repositories, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code" / "x").read_text() == "x"


def test_submodules_over_ssh_get_the_key_of_ssh_and_no_secret_of_https(
    server: SshServer, repositories: GitServer, tmp_path: Path
) -> None:
    root = repositories.root
    inner = repositories.repository("inner", x="inner")
    repositories.repository("outer", x="x")
    commit = repositories.submodule("outer", "in", f"{server.url}{root}/inner.git", inner)
    code = GitCode(f"{server.url}{root}/outer.git", commit, secret="host", submodules=True)
    as_secret(server)
    done = fetch(server, repositories, code, tmp_path / "ssh")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ssh" / "code" / "in" / "x").read_text() == "inner"
    https = replace(code, url=f"{repositories.url}/outer.git")
    done = fetch(server, repositories, https, tmp_path / "https")
    assert done.returncode != 0
    assert "Permission denied (publickey)" in done.stderr

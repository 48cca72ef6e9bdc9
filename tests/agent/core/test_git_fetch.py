"""The script that fetches code with git, run against an https server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from agent.core import git_fetch
from agent.core.inputs import TaskPaths
from muster.protocol.git_code import GitCode
from tests.git_server import PASSWORD, GitServer, git, git_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(tmp_path_factory.mktemp("git")) as made:
        yield made


class Fetch(NamedTuple):
    """A node's folders of a task, and the home of its user."""

    root: Path
    server: GitServer

    @property
    def code(self) -> Path:
        return self.root / "code"

    def inside(self, name: str) -> Fetch:
        """Another task of the same user."""
        (self.root / name).mkdir()
        (self.root / "home").mkdir(exist_ok=True)
        (self.root / name / "home").symlink_to(self.root / "home")
        return Fetch(self.root / name, self.server)

    def secret(self, text: str, mode: int = 0o600) -> None:
        file = self.root / "home" / git_fetch.SECRETS / "host"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def run(self, code: GitCode, **env: str) -> subprocess.CompletedProcess[str]:
        for name in ("code", "scratch", "home"):
            (self.root / name).mkdir(exist_ok=True)
        scratch = str(self.root / "scratch")
        paths = TaskPaths(str(self.code), scratch, "/output", "/hostfile")
        made = git_fetch.fetch_program(code, paths, str(self.server.config))
        assert made is not None
        # The shim sets the same environment.
        base = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "USER": "ann"}
        return subprocess.run(
            made.argv,
            cwd=self.code,
            env={**base, **made.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def files(self) -> dict[str, str]:
        found = [path for path in self.code.rglob("*") if ".git" not in path.parts]
        return {
            str(path.relative_to(self.code)): path.read_text()
            for path in found
            if path.is_file() and path.name not in (".git", ".gitmodules")
        }


@pytest.fixture
def fetch(server: GitServer, tmp_path: Path) -> Fetch:
    server.asked.clear()
    server.credentials.clear()
    return Fetch(tmp_path, server)


def test_a_commit_that_is_no_longer_the_newest(server: GitServer, fetch: Fetch) -> None:
    first = server.repository("plain", **{"train.py": "print(1)\n"})
    server.push("plain", **{"train.py": "print(2)\n"})
    done = fetch.run(GitCode(f"{server.url}/plain.git", first))
    assert (done.returncode, done.stderr) == (0, "")
    assert fetch.files() == {"train.py": "print(1)\n"}
    assert git(fetch.code, "rev-parse", "HEAD") == first
    assert git(fetch.code, "remote", "get-url", "origin") == f"{server.url}/plain.git"
    assert list((fetch.root / "scratch").iterdir()) == []


def test_a_server_of_plain_files(server: GitServer, fetch: Fetch) -> None:
    first = server.repository("files", **{"train.py": "print(1)\n"})
    server.push("files", **{"train.py": "print(2)\n"})
    done = fetch.run(GitCode(f"{server.url}/dumb/files.git", first))
    assert done.returncode == 0, done.stderr
    assert fetch.files() == {"train.py": "print(1)\n"}


@pytest.mark.parametrize("text", [f"ann:{PASSWORD}\n", f"ann:{PASSWORD}"])
def test_a_secret(server: GitServer, fetch: Fetch, text: str) -> None:
    name = f"secret{len(text)}"
    commit = server.repository(name, x="x")
    code = GitCode(f"{server.url}/private/{name}.git", commit, secret="host")
    fetch.secret(text)
    done = fetch.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(server.credentials) == {f"ann:{PASSWORD}"}
    kept = [p for p in fetch.code.rglob("*") if p.is_file() and PASSWORD.encode() in p.read_bytes()]
    assert kept == []


def test_without_the_secret_nobody_is_asked(server: GitServer, fetch: Fetch) -> None:
    commit = server.repository("asked", x="x")
    code = GitCode(f"{server.url}/private/asked.git", commit)
    done = fetch.run(code)
    assert done.returncode != 0
    assert "terminal prompts disabled" in done.stderr
    missing = fetch.run(replace(code, secret="host"))
    assert "has no secret host on this node" in missing.stderr
    fetch.secret("ann:wrong")
    wrong = fetch.run(replace(code, secret="host"))
    assert "Authentication failed" in wrong.stderr
    fetch.secret(f"ann:{PASSWORD}", 0o640)
    open_to_others = fetch.run(replace(code, secret="host"))
    assert "others may use the secret host" in open_to_others.stderr
    for said in (done, missing, wrong, open_to_others):
        assert PASSWORD not in said.stderr + said.stdout


def test_the_secret_is_for_the_host_of_the_address_alone(server: GitServer, fetch: Fetch) -> None:
    inner = server.repository("inner", x="x")
    fetch.secret(f"ann:{PASSWORD}")
    for host, code in (("127.0.0.1", 1), ("localhost", 0)):
        url = f"{server.url.replace('localhost', host)}/private/inner.git"
        server.repository(host, x="x")
        commit = server.submodule(host, "in", url, inner)
        other = fetch.inside(host)
        outer = f"{server.url}/{host}.git"
        done = other.run(GitCode(outer, commit, secret="host", submodules=True))
        assert done.returncode == code, done.stderr
        assert bool(server.credentials) is (code == 0)


def test_submodules_only_if_asked(server: GitServer, fetch: Fetch) -> None:
    inner = server.repository("part", **{"lib.py": "lib"})
    server.push("part", **{"lib.py": "newer"})
    server.repository("whole", x="x")
    commit = server.submodule("whole", "p", "../part.git", inner)
    code = GitCode(f"{server.url}/whole.git", commit)
    done = fetch.run(code)
    assert done.returncode == 0, done.stderr
    assert "p/lib.py" not in fetch.files()
    again = fetch.inside("again")
    done = again.run(replace(code, submodules=True))
    assert done.returncode == 0, done.stderr
    assert again.files()["p/lib.py"] == "lib"


@pytest.mark.parametrize("url", ["http://localhost/x.git", "file:///", "ext::touch hurt"])
def test_submodules_come_by_https_and_ssh_alone(server: GitServer, fetch: Fetch, url: str) -> None:
    name = f"of-{url[:4]}"
    inner = server.repository(f"{name}-in", x="x")
    server.repository(name, x="x")
    commit = server.submodule(name, "in", url, inner)
    done = fetch.run(GitCode(f"{server.url}/{name}.git", commit, submodules=True))
    assert done.returncode != 0
    assert "not allowed" in done.stderr
    assert not (fetch.code / "hurt").exists()


def test_hooks_and_configuration_of_the_user_do_nothing(server: GitServer, fetch: Fetch) -> None:
    commit = server.repository("hooked", x="x")
    home = fetch.root / "home"
    (home / "hooks").mkdir(parents=True)
    hook = home / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {fetch.root}/hurt\n")
    hook.chmod(0o755)
    git(home, "config", "-f", ".gitconfig", "core.hooksPath", str(home / "hooks"))
    git(home, "config", "-f", ".gitconfig", f"url.{server.url}/none.insteadOf", server.url)
    done = fetch.run(GitCode(f"{server.url}/hooked.git", commit))
    assert done.returncode == 0, done.stderr
    assert not (fetch.root / "hurt").exists()


def test_a_commit_that_is_not_there(server: GitServer, fetch: Fetch) -> None:
    server.repository("lacks", x="x")
    done = fetch.run(GitCode(f"{server.url}/lacks.git", "f" * 40))
    assert done.returncode != 0
    assert "not our ref" in done.stderr
    done = fetch.inside("dumb").run(GitCode(f"{server.url}/dumb/lacks.git", "f" * 40))
    assert done.returncode != 0
    assert "f" * 40 in done.stderr


def test_too_much(server: GitServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = server.repository("large", **dict.fromkeys("ab", "x" * 3000000))
    code = GitCode(f"{server.url}/large.git", commit)
    monkeypatch.setattr(git_fetch, "BYTES_MAX", 5 << 20)
    done = fetch.run(code)
    assert "the code is more than 5 MiB or 200000 files" in done.stderr
    assert done.returncode != 0
    assert fetch.files() == {}
    monkeypatch.setattr(git_fetch, "BYTES_MAX", 6 << 20)
    assert fetch.inside("fits").run(code).returncode == 0
    monkeypatch.setattr(git_fetch, "FILES_MAX", 1)
    assert "or 1 files" in fetch.inside("files").run(code).stderr


def test_too_much_with_submodules(
    server: GitServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = server.repository("many", **dict.fromkeys("abc", "x" * 1000000))
    server.repository("few", x="x")
    commit = server.submodule("few", "in", "../many.git", inner)
    code = GitCode(f"{server.url}/few.git", commit, submodules=True)
    # x, .gitmodules and the three files of the submodule.
    monkeypatch.setattr(git_fetch, "FILES_MAX", 5)
    done = fetch.run(code)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(git_fetch, "FILES_MAX", 4)
    assert "or 4 files" in fetch.inside("files").run(code).stderr
    monkeypatch.setattr(git_fetch, "FILES_MAX", 5)
    monkeypatch.setattr(git_fetch, "BYTES_MAX", 2 << 20)
    assert "more than 2 MiB" in fetch.inside("bytes").run(code).stderr


def test_a_pack_without_end_is_cut_off(
    server: GitServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = server.root / "work" / "pack"
    server.repository("pack", x="x")
    (work / "noise").write_bytes(os.urandom(1 << 20))
    commit = server.push("pack")
    monkeypatch.setattr(git_fetch, "BYTES_MAX", 512 << 10)
    done = fetch.run(GitCode(f"{server.url}/pack.git", commit))
    assert done.returncode != 0
    assert "signal 25" in done.stderr or "File too large" in done.stderr


def test_a_node_without_git(server: GitServer, fetch: Fetch) -> None:
    done = fetch.run(GitCode(f"{server.url}/x.git", "f" * 40), PATH=str(fetch.root))
    assert done.stderr == "muster: git is not installed on this node\n"


def test_a_configuration_that_cannot_be_read_is_not_ignored(
    server: GitServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "config", fetch.root / "absent")
    done = fetch.run(GitCode(f"{server.url}/x.git", "f" * 40))
    assert "cannot read the git_config" in done.stderr

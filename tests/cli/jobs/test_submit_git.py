"""`muster submit` finds the commit of a branch or tag, on the machine that submits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.cli.conftest import Run
from tests.client.fake_coordinator import FakeCoordinator
from tests.git_server import PASSWORD, GitServer, git, git_server

Submit = Callable[..., CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(tmp_path_factory.mktemp("git")) as made:
        made.repository("x", a="1")
        yield made


@pytest.fixture
def submit(run: Run, server: GitServer, tmp_path: Path) -> Submit:
    """Check a job with this `workdir`, on a machine that trusts the server."""

    def check(url: str, *words: str, **keys: str) -> CompletedProcess[bytes]:
        job = {"run": "train.py", "workdir": {"git": f"{server.url}/{url}", **keys}}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        server.asked.clear()
        return run("submit", "-f", "job.yaml", *words, GIT_SSL_CAINFO=str(server.ca))

    return check


def commit_in(done: CompletedProcess[bytes]) -> object:
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["workdir"]["commit"]


def test_the_commit_of_a_branch_a_tag_and_the_default(submit: Submit, server: GitServer) -> None:
    first = git(server.root / "work/x", "rev-parse", "HEAD")
    git(server.root / "work/x", "tag", "-a", "v1", "-m", "x")
    git(server.root / "work/x", "branch", "other/main")
    newest = server.push("x", "v1", "other/main", a="2")
    for ref, commit in (
        ("main", newest),
        ("v1", first),
        ("other/main", first),
        ("refs/heads/main", newest),
        ("refs/tags/v1", first),
        ("HEAD", newest),
    ):
        done = submit("x.git", "--dry-run", ref=ref)
        assert commit_in(done) == commit, ref
        assert f"at {commit}, {ref}".encode() in done.stderr
    assert commit_in(submit("x.git", "--dry-run")) == newest


def test_a_full_commit_asks_nobody(submit: Submit, server: GitServer) -> None:
    assert commit_in(submit("x.git", "--dry-run", ref="f" * 40)) == "f" * 40
    assert server.asked == []


def test_the_job_that_is_sent_has_the_commit(
    submit: Submit, server: GitServer, fake: FakeCoordinator
) -> None:
    commit = git(server.root / "x.git", "rev-parse", "main")
    done = submit("x.git", ref="main", secret="github")
    assert f"{server.url}/x.git at {commit}, main".encode() in done.stderr
    ((_, sent),) = fake.script.submitted.values()
    url = f"{server.url}/x.git"
    assert sent["workdir"] == {"git": url, "ref": "main", "secret": "github", "commit": commit}


def test_what_is_not_there_is_refused_in_words(submit: Submit, server: GitServer) -> None:
    missing = submit("x.git", "--dry-run", ref="ain")
    assert (missing.returncode, missing.stdout) == (125, b"")
    assert b"has no branch or tag ain" in missing.stderr
    short = submit("x.git", "--dry-run", ref="0123456")
    assert b"a commit in full" in short.stderr
    nowhere = submit("nothing.git", "--dry-run")
    assert nowhere.returncode == 125
    assert b"cannot be read from this machine" in nowhere.stderr
    assert b"not found" in nowhere.stderr
    assert b"git ls-remote" in nowhere.stderr


def test_a_name_of_a_branch_and_of_a_tag(submit: Submit, server: GitServer) -> None:
    server.repository("both", a="1")
    git(server.root / "work/both", "tag", "twice")
    server.push("both", "twice", a="2")
    git(server.root / "work/both", "branch", "twice", "main")
    git(server.root / "work/both", "push", "-q", "../../both.git", "refs/heads/twice")
    done = submit("both.git", "--dry-run", ref="twice")
    assert done.returncode == 125
    assert b"write `ref: refs/heads/twice` or `ref: refs/tags/twice`" in done.stderr


def test_the_credentials_are_those_of_the_user(
    submit: Submit, server: GitServer, tmp_path: Path
) -> None:
    done = submit("private/x.git", "--dry-run")
    assert done.returncode == 125
    assert b"cannot be read from this machine" in done.stderr
    (tmp_path / ".git-credentials").write_text(
        f"{server.url.replace('://', f'://ann:{PASSWORD}@')}\n"
    )
    (tmp_path / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    done = submit("private/x.git", "--dry-run")
    assert commit_in(done)
    assert PASSWORD.encode() not in done.stdout + done.stderr


def test_a_machine_without_git(run: Run, submit: Submit, environ: dict[str, str]) -> None:
    environ["PATH"] = os.fspath(environ["HOME"])
    done = submit("x.git", "--dry-run")
    assert done.returncode == 125
    assert b"git is not installed on this machine" in done.stderr


def test_no_files_travel(submit: Submit) -> None:
    done = submit("x.git", "--list-files")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"fetched by the nodes" in done.stderr

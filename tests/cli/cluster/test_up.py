"""`muster up`: what its options and prompts put into a new cluster, and what it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.cli.cluster.setup import new_cluster
from muster.daemon.certificates import certificate_hosts
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal

USUAL = ("up", "--dir", "etc", "--no-start", "--name", "127.0.0.1", "--user", "ada")


def written(folder: Path) -> Any:
    return yaml.safe_load((folder / "etc" / "coordinator.yaml").read_text())


def said(text: bytes) -> str:
    return " ".join(text.decode().split())


def test_each_pool_that_is_named_gets_the_time_limit(run: Run, tmp_path: Path) -> None:
    words = ("--pool", "lab", "--pool", "prod", "--time-limit", "2h", "--run-as", "SUBMITTER")
    done = run(*USUAL, "--no-wheels", *words)
    assert done.returncode == 0, done.stderr
    limit = {"defaults": {"time_limit": "2h"}}
    assert written(tmp_path)["pools"] == {"lab": limit, "prod": limit}


def test_the_certificate_is_for_the_names_that_are_given_and_those_of_the_machine(
    run: Run, tmp_path: Path
) -> None:
    more = ("--name", "head.example", "--name", "192.0.2.7", "--run-as", "SUBMITTER")
    assert run(*USUAL, "--no-wheels", *more).returncode == 0
    hosts, addresses = certificate_hosts((tmp_path / "etc" / "server.pem").read_bytes())
    assert {"head.example", os.uname().nodename, "localhost"} <= set(hosts)
    assert {"127.0.0.1", "192.0.2.7"} <= {str(each) for each in addresses}
    # The first one is printed.
    assert written(tmp_path)["join"]["address"] == "127.0.0.1:7077"


def test_wheels_for_other_nodes_are_downloaded(run: Run, tmp_path: Path) -> None:
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    # The first one in order, so that its failure is named.
    done = run(*USUAL, "--run-as", "SUBMITTER", "--wheels-for", "3.10-a64", **pip)
    assert done.returncode == 0, done.stderr
    assert "because its wheels cannot be downloaded: 3.10-a64: ERROR: " in said(done.stderr)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--wheels-for", "3.12"), "is not PYTHON-MACHINE, such as 3.12-aarch64"),
        (("--wheels-for", "3.12-aarch64", "--no-wheels"), "exclude each other"),
    ],
)
def test_wheels_that_nobody_can_have_are_refused(
    run: Run, tmp_path: Path, more: tuple[str, ...], why: str
) -> None:
    done = run(*USUAL, "--run-as", "SUBMITTER", *more)
    assert done.returncode == 2
    assert why in said(done.stderr)
    assert not (tmp_path / "etc").exists()


def test_a_terminal_is_asked_for_the_user_and_the_interpreter(
    environ: dict[str, str], tmp_path: Path
) -> None:
    terminal = Terminal(environ, *USUAL, "--no-wheels", "--dir", str(tmp_path / "etc"), width=200)
    try:
        terminal.until(lambda raw: b"User of the jobs on the nodes, or SUBMITTER: " in raw)
        terminal.type("trainer")
        terminal.until(lambda raw: b"with torch on the nodes (empty for none): " in raw)
        terminal.type("/opt/training")
        assert terminal.end() == 0, terminal.lines
    finally:
        terminal.kill()
    join = written(tmp_path)["join"]
    assert (join["run_as"], join["python"]) == ("trainer", "/opt/training")
    text = " ".join(" ".join(terminal.lines).split())
    assert "use /opt/training of each node, with its torch: it has to exist on the nodes" in text


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="the text is for root")
def test_root_as_the_first_admin_is_told_that_it_submits_no_jobs(run: Run) -> None:
    words = ("up", "--dir", "etc", "--no-start", "--no-wheels", "--name", "127.0.0.1")
    done = run(*words, "--user", "root", "--run-as", "SUBMITTER")
    assert "root is the first admin, and cannot submit jobs" in said(done.stderr)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_private_files_are_given_to_the_coordinators_user_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "cert.pem"
    for path, mode in ((private, 0o600), (public, 0o644)):
        path.touch()
        path.chmod(mode)
    # No test makes a user on this machine.
    monkeypatch.setattr(new_cluster, "account", lambda: (4711, 4712))
    new_cluster.give_to_account((private, public))
    found = private.stat()
    assert (found.st_uid, found.st_gid) == (4711, 4712)
    assert public.stat().st_uid == 0


def test_join_asks_for_the_secret_at_a_terminal(environ: dict[str, str], tmp_path: Path) -> None:
    """It is not shown, and one that is cut off goes nowhere."""
    words = ("join", "127.0.0.1:1", "--dir", str(tmp_path / "node"), "--run-as", "SUBMITTER")
    terminal = Terminal(environ, *words, width=200)
    try:
        terminal.until(lambda raw: b"Join secret: " in raw)
        terminal.type("mj1.half")
        assert terminal.end() == 2, terminal.lines
    finally:
        terminal.kill()
    text = " ".join(terminal.lines)
    assert "not a whole join secret" in text
    assert "mj1.half" not in text
    assert not (tmp_path / "node").exists()

"""`muster login`, `logout`, and the verbs of other systems."""

import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.fake_coordinator import TOKEN, FakeCoordinator


def test_login_writes_a_private_file_and_logout_removes_it(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    file = tmp_path / ".config/muster/client.yaml"
    alone = {"MUSTER_URL": "", "MUSTER_TOKEN": ""}
    done = run("login", fake.url, TOKEN, **alone)
    assert (done.returncode, done.stdout) == (0, b"alice\n")
    assert TOKEN.encode() not in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("whoami", **alone).stdout == b"alice\n"
    assert run("login", f"{fake.url}/", TOKEN, **alone).returncode == 0
    assert run("logout", **alone).returncode == 0
    assert not file.exists()
    assert run("whoami", **alone).returncode == 125


def test_a_token_that_is_wrong_and_a_file_of_another_cluster_change_nothing(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    file = tmp_path / ".config/muster/client.yaml"
    assert run("login", fake.url, "muster_user_other_x").returncode == 125
    assert not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text('url: "https://other:7077"\n')
    refused = run("login", fake.url, TOKEN)
    assert (refused.returncode, file.read_text()) == (125, 'url: "https://other:7077"\n')
    assert b"--force" in refused.stderr
    assert run("login", "--force", fake.url, TOKEN).returncode == 0


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("kill", "cancel"),
        ("list", "ps"),
        ("queue", "ps"),
        ("squeue", "ps"),
        ("sinfo", "nodes"),
        ("scancel", "cancel"),
        ("status", "show"),
        ("drain", "node drain"),
    ],
)
def test_a_verb_of_another_system_is_answered_with_ours(run: Run, typed: str, ours: str) -> None:
    done = run(typed, "5")
    assert done.returncode == 2
    assert f"use: muster {ours}".encode() in done.stderr

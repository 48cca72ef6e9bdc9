"""`muster token`: tokens that a coordinator takes, shown once, and ended."""

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from muster.cli.cluster.tokens_file import changing, new_token
from muster.daemon.clock import SystemClock
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.tokens import TokenStore
from tests.cli.conftest import Run


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    """The tokens file of a new cluster, in the place where the verb looks for it."""
    run("init", "--dir", "cluster")
    return tmp_path / "cluster" / "tokens.yaml"


def store(file: Path) -> TokenStore:
    return TokenStore(file, SystemClock())


def test_a_new_token_is_good_and_its_secret_is_nowhere(run: Run, file: Path) -> None:
    done = run("token", "create", "--user", "bob", "--expires", "30d", "--file", str(file))
    token = done.stdout.decode().strip()
    record = store(file).find(token)
    assert record is not None
    assert (record.user, record.user_role) == ("bob", Role.USER)
    assert store(file).why_not(record) == ""
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", record.expires)
    assert token.rpartition("_")[2] not in file.read_text()
    assert f"muster token revoke {record.id}".encode() in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_it_is_listed_and_revoked(run: Run, file: Path) -> None:
    made = json.loads(
        run("token", "create", "--role", "join", "--json", "--file", str(file)).stdout
    )
    listed = json.loads(run("token", "list", "--json", "--file", str(file)).stdout)["tokens"]
    assert [line["role"] for line in listed] == ["admin", "join", "join"]
    assert listed[-1]["id"] == made["id"]
    assert "sha256" not in listed[-1]
    assert made["id"] in run("token", "list", "--file", str(file)).stdout.decode()
    refused = run("token", "revoke", made["id"], "nobody", "--file", str(file))
    assert refused.returncode == 125
    assert b"there is no token nobody" in refused.stderr
    assert store(file).find(made["token"]) is not None, "all of them or none"
    gone = run("token", "revoke", made["id"], "--json", "--file", str(file))
    assert json.loads(gone.stdout)["tokens"][0]["id"] == made["id"]
    assert store(file).find(made["token"]) is None


def test_an_expired_token_is_listed_as_such(run: Run, file: Path) -> None:
    with changing(file) as records:
        records.append(new_token(TokenClass.ADMIN, "bob", "2020-01-01T00:00:00Z")[1])
    assert b"2020-01-01T00:00:00Z (expired)" in run("token", "list", "--file", str(file)).stdout


def test_the_file_of_init_is_the_default(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    run("init", "--dir", str(folder), MUSTER_CONFIG=str(folder / "client.yaml"))
    there = run("token", "list", MUSTER_CONFIG=str(folder / "client.yaml"))
    if os.geteuid() != 0:  # root's is /etc/muster
        assert there.returncode == 0, there.stderr
    for verb in ("list", "create"):
        missing = run("token", verb, "--file", "nowhere.yaml")
        assert missing.returncode == 125
        assert b"nowhere.yaml: there is no tokens file; name it with --file" in missing.stderr


@pytest.mark.parametrize("user", ["", " bob", "a\nb"])
def test_a_user_of_no_name(run: Run, file: Path, user: str) -> None:
    assert run("token", "create", "--user", user, "--file", str(file)).returncode == 2


def test_two_who_change_it_wait_for_each_other(file: Path) -> None:
    def add() -> None:
        for _ in range(5):
            with changing(file) as records:
                records.append(new_token(TokenClass.ADMIN, "bob")[1])

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with changing(file) as records:
        assert len(records) == 22


@pytest.mark.root
def test_its_owner_stays(run: Run, file: Path) -> None:
    os.chown(file, 12345, 12346)
    run("token", "create", "--file", str(file))
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12346)


def test_a_link_stays_one_to_the_file_that_the_coordinator_reads(
    run: Run, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(file)
    made = run("token", "create", "--file", str(tmp_path / "link"), "--json")
    assert (tmp_path / "link").is_symlink()
    name = json.loads(made.stdout)["id"]
    assert name in file.read_text()
    assert run("token", "revoke", name, "--file", str(tmp_path / "link")).returncode == 0
    assert name not in file.read_text()

"""`muster init`: files that the daemons and the client load as they are."""

import os
import pwd
import stat
from pathlib import Path

import msgspec
import pytest
import yaml

import agent.config
import orchestrator.config
from muster.cli.cluster.init import command
from muster.client import load_settings
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass, TokensFile, digest, parse
from tests.cli.conftest import Run


def test_the_files_are_what_the_daemons_and_the_client_read(run: Run, tmp_path: Path) -> None:
    done = run("init", "--dir", "cluster", "--listen", "127.0.0.1:7099", "--user", "alice")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "cluster"
    coordinator = orchestrator.config.load(file=folder / "coordinator.yaml", environ={})
    assert (coordinator.listen.host, coordinator.listen.port) == ("127.0.0.1", 7099)
    node = agent.config.load(file=folder / "agent.yaml", environ={})
    client = load_settings({"HOME": str(tmp_path)})
    assert node.coordinator == client.url == "http://127.0.0.1:7099"
    assert client.warnings == ()

    records = msgspec.convert(
        yaml.safe_load(coordinator.tokens_path.read_text()), TokensFile
    ).tokens
    assert [(record.class_, record.user) for record in records] == [
        (TokenClass.USER, "alice"),
        (TokenClass.JOIN, "alice"),
    ]
    assert records[0].user_role is Role.ADMIN
    assert node.token_file is not None
    for text, record in zip(
        (client.token, node.token_file.read_text().strip()), records, strict=True
    ):
        token = parse(text)
        assert (token.class_, token.id) == (record.class_, record.id)
        assert digest(token.secret) == record.sha256
        assert token.secret not in coordinator.tokens_path.read_text()


def test_secrets_are_for_their_owner_alone_and_never_shown(run: Run, tmp_path: Path) -> None:
    done = run("init", "--dir", "cluster")
    private = ["cluster/tokens.yaml", "cluster/join-token", ".config/muster/client.yaml"]
    for name in private:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert b"muster_user_" not in done.stdout + done.stderr
    assert b"muster_join_" not in done.stdout + done.stderr


def test_the_next_commands_are_on_stdout(run: Run, tmp_path: Path) -> None:
    lines = run("init", "--dir", "cluster").stdout.decode().splitlines()
    folder = tmp_path / "cluster"
    assert lines[0] == f"muster coordinator --config {folder}/coordinator.yaml"
    assert lines[1].startswith(f"muster agent --config {folder}/agent.yaml")
    assert lines[2].startswith("muster submit")


def test_nothing_is_replaced_without_force(run: Run, tmp_path: Path) -> None:
    run("init", "--dir", "cluster")
    files = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "cluster" / "agent.yaml").unlink()
    refused = run("init", "--dir", "cluster")
    assert refused.returncode == 125
    assert b"nothing was written" in refused.stderr
    assert not (tmp_path / "cluster" / "agent.yaml").exists()
    assert run("init", "--dir", "cluster", "--force").returncode == 0
    changed = {path for path, text in files.items() if path.read_text() != text}
    assert {path.name for path in changed} == {"tokens.yaml", "join-token", "client.yaml"}


def test_the_tokens_of_a_cluster_that_has_run_stay(run: Run, tmp_path: Path) -> None:
    """The coordinator reads the tokens file once: it would not accept the new tokens."""
    run("init", "--dir", "cluster")
    journal = tmp_path / "cluster/state/coordinator/journal.sqlite"
    journal.parent.mkdir(parents=True)
    journal.touch()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused = run("init", "--dir", "cluster", "--force")
    assert refused.returncode == 125
    assert b"--new-admin NAME" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_the_clients_file_of_another_cluster_is_kept_as_a_copy(run: Run, tmp_path: Path) -> None:
    client = tmp_path / ".config/muster/client.yaml"
    olds: list[bytes] = []
    for name in ("one", "two", "three"):
        done = run("init", "--dir", name, "--force")
        assert done.returncode == 0
        copies = sorted(client.parent.glob("client.yaml.old*"))
        assert [path.read_bytes() for path in copies] == olds
        for path in copies:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not copies or f"MUSTER_CONFIG={copies[-1]}".encode() in done.stderr
        olds.append(client.read_bytes())


def test_no_copy_is_kept_for_the_same_cluster(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert run("init", "--dir", "cluster", "--force").returncode == 0
    assert [path.name for path in (tmp_path / ".config/muster").iterdir()] == ["client.yaml"]


def test_a_clients_file_that_cannot_be_copied_stays(run: Run, tmp_path: Path) -> None:
    client = tmp_path / ".config/muster/client.yaml"
    client.mkdir(parents=True)
    done = run("init", "--dir", "cluster", "--force")
    assert done.returncode == 125
    assert b"nothing was written" in done.stderr
    assert not (tmp_path / "cluster").exists()


def test_a_network_address_needs_tls(run: Run, tmp_path: Path) -> None:
    refused = run("init", "--dir", "cluster", "--listen", "0.0.0.0:7077")
    assert refused.returncode == 2
    assert b"--tls-cert" in refused.stderr
    assert not (tmp_path / "cluster").exists()


def test_tls_is_passed_on_to_all_three_as_copies(run: Run, tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text(f"of {name}")
        (tmp_path / name).chmod(0o640)
    arguments = "--tls-cert cert --tls-key key --tls-ca ca --url https://head:7077"
    umask = os.umask(0o077)
    try:
        done = run("init", "--dir", "c", "--listen", "[::]:7077", *arguments.split())
    finally:
        os.umask(umask)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "c"
    for name, said, mode in (
        ("server.pem", "of cert", 0o644),
        ("server-key.pem", "of key", 0o600),
        ("ca.pem", "of ca", 0o644),
    ):
        assert (folder / name).read_text() == said
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # people read the CA
    assert not any(str(tmp_path / "key") in file.read_text() for file in folder.glob("*.yaml"))
    coordinator = orchestrator.config.load(file=folder / "coordinator.yaml", environ={})
    assert coordinator.tls is not None
    assert (coordinator.listen.host, coordinator.tls.key) == ("::", folder / "server-key.pem")
    node = agent.config.load(file=folder / "agent.yaml", environ={})
    assert (node.coordinator, node.tls_ca) == ("https://head:7077", folder / "ca.pem")
    settings = load_settings({"HOME": str(tmp_path)})
    assert (settings.url, settings.ca) == ("https://head:7077", folder / "ca.pem")


def test_certificates_of_the_folder_itself_stay_where_they_are(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name in ("server.pem", "key.pem"):
        (tmp_path / "c" / name).write_text(name)
    arguments = "--tls-cert c/server.pem --tls-key c/key.pem"
    done = run("init", "--dir", "c", "--listen", "[::]:7077", *arguments.split())
    assert done.returncode == 0, done.stderr
    coordinator = orchestrator.config.load(file=tmp_path / "c/coordinator.yaml", environ={})
    assert coordinator.tls is not None
    assert coordinator.tls.key == tmp_path / "c/key.pem"
    assert not (tmp_path / "c/server-key.pem").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_coordinators_user_owns_the_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pem").touch()
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(pwd, "getpwnam", {"muster": nobody}.__getitem__)
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "client.yaml"))
    pem = str(tmp_path / "pem")
    words = ["--dir", str(tmp_path / "c"), "--listen", "[::]:7077", "--tls-cert", pem]
    command.main([*words, "--tls-key", pem], standalone_mode=False)
    owned = {path.name for path in (tmp_path / "c").iterdir() if path.stat().st_uid}
    assert owned == {"server-key.pem", "tokens.yaml"}


@pytest.mark.parametrize("listen", ["7077", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:0", ":7077"])
def test_an_invalid_address_is_refused(run: Run, listen: str) -> None:
    assert run("init", "--dir", "cluster", "--listen", listen).returncode == 2


@pytest.mark.parametrize("listen", ["*:7077", "a b:7077", "a/b:7077"])
def test_an_impossible_listen_address_is_refused_with_tls_too(
    run: Run, tmp_path: Path, listen: str
) -> None:
    (tmp_path / "pem").touch()
    done = run(
        *("init", "--dir", "cluster", "--listen", listen),
        *("--tls-cert", "pem", "--tls-key", "pem"),
    )
    assert done.returncode == 2
    assert b"is not HOST:PORT" in done.stderr


@pytest.mark.parametrize("user", ["a\nb", " ann", "\x1b[1m", "muster"])
def test_an_invalid_user_name_is_refused(run: Run, tmp_path: Path, user: str) -> None:
    done = run("init", "--dir", "cluster", "--user", user)
    assert done.returncode == 2
    assert b"is not a valid user name" in done.stderr
    assert not (tmp_path / "cluster").exists()

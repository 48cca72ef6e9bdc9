"""`muster login`, `logout`, and the verbs of other systems."""

import contextlib
import hashlib
import json
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Run
from tests.client.fake_coordinator import TOKEN, FakeCoordinator
from tests.orchestrator.process import CoordinatorProcess, add_token


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


def test_a_token_from_standard_input(
    environ: dict[str, str], fake: FakeCoordinator, tmp_path: Path
) -> None:
    environ |= {"MUSTER_URL": "", "MUSTER_TOKEN": ""}
    login = [sys.executable, "-m", "muster.cli", "login", fake.url]
    done = subprocess.run(
        login, env=environ, input=f"{TOKEN}\n".encode(), capture_output=True, check=True
    )
    assert done.stdout == b"alice\n"
    assert b"arning" not in done.stderr
    nothing = subprocess.run(
        login, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert nothing.returncode == 125
    assert b"does not contain a token" in nothing.stderr


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
    assert b"with --force" in refused.stderr
    assert b"that begins with curl is: ... sh -s -- --force" in refused.stderr
    assert run("login", "--force", fake.url, TOKEN).returncode == 0


def test_the_token_of_another_user_is_not_replaced(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "client.yaml"
    (tmp_path / "coordinator").mkdir()
    with CoordinatorProcess(tmp_path / "coordinator") as coordinator:
        coordinator.start()
        bob = add_token(coordinator, "bob")
        alone = {"MUSTER_URL": "", "MUSTER_TOKEN": "", "MUSTER_CONFIG": str(file)}
        assert run("login", coordinator.url, coordinator.admin, **alone).returncode == 0
        before = file.read_text()
        refused = run("login", coordinator.url, bob, **alone)
        assert (refused.returncode, file.read_text()) == (125, before)
        assert b"has a token of admin-user" in refused.stderr
        assert run("login", coordinator.url, coordinator.admin, **alone).returncode == 0
        assert run("login", "--force", coordinator.url, bob, **alone).returncode == 0
        # A token that is refused is nobody's.
        file.write_text(f"url: {coordinator.url}\ntoken: muster_user_00000000_x\n")
        assert run("login", coordinator.url, bob, **alone).returncode == 0


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


@contextlib.contextmanager
def impostor(folder: Path, pem: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server with a certificate of its own CA that answers everything with `pem`. Yields its URL,
    and the Authorization headers that it gets."""
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.extend(self.headers.get_all("Authorization", []))
            self.send_response(200)
            self.send_header("Content-Length", str(len(pem)))
            self.end_headers()
            self.wfile.write(pem)

        def log_message(self, *_: object) -> None:
            pass

    certificate(folder, trustme.CA())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def certificate(folder: Path, authority: trustme.CA) -> dict[str, str]:
    """Write a certificate of 127.0.0.1, and return the settings that name it."""
    folder.mkdir(exist_ok=True)
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(folder / "key.pem")
    folder.joinpath("cert.pem").write_bytes(b"".join(p.bytes() for p in made.cert_chain_pems))
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {name: str(folder / f"{file}.pem") for name, file in _TLS.items()}


_TLS = {"cert": "cert", "key": "key", "ca": "ca"}


def test_a_login_trusts_only_the_ca_that_the_token_names(run: Run, tmp_path: Path) -> None:
    tls = certificate(tmp_path / "tls", trustme.CA())
    pem, file = Path(tls["ca"]).read_bytes(), tmp_path / ".config/muster/client.yaml"
    with CoordinatorProcess(tmp_path, tls=tls).start() as process:
        url = process.url.replace("http:", "https:")
        admin = {"MUSTER_URL": url, "MUSTER_TOKEN": process.admin, "MUSTER_CA": tls["ca"]}
        made = run("token", "create", "--json", **admin)
        assert made.returncode == 0, made.stderr
        new = json.loads(made.stdout)
        line = f"muster login {url} ml1.{hashlib.sha256(pem).hexdigest()}.{new['text']}"
        assert line.encode() in b" ".join(made.stderr.split())
        word = line.rsplit(maxsplit=1)[-1]

        for answer in (pem, b"another CA"):
            with impostor(tmp_path / "impostor", answer) as (other, got):
                refused = run("login", other, word)
                assert (refused.returncode, got) == (125, []), refused.stderr
        assert not list(tmp_path.glob(".config/muster/*"))
        assert run("login", url, word[:40]).returncode == 2
        assert run("login", url, word, "--ca", tls["ca"]).returncode == 2

        done = run("login", url, word)
        assert (done.returncode, done.stdout) == (0, b"admin-user\n"), done.stderr
        ca = file.with_name("client.ca.pem")
        assert [stat.S_IMODE(each.stat().st_mode) for each in (file, ca)] == [0o600, 0o600]
        assert ca.read_bytes() == pem
        assert run("whoami").stdout == b"admin-user\n"

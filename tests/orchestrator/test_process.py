"""The process: it starts or prints one line why not, and it stops on request."""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from muster.daemon.durable_files import write_atomic
from muster.protocol.link.control_channel import PrepareTask
from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.journal.commands import command
from tests.orchestrator.process import (
    TREE,
    CoordinatorProcess,
    add_token,
    run,
    token_file,
)
from tests.orchestrator.user import user_of


def start(folder: Path, **settings: Any) -> tuple[int, str]:
    """Exit code and standard error of a coordinator that is not to start."""
    tokens = folder / "tokens"
    if not tokens.exists():
        token_file(tokens)
    config = folder / "c.yaml"
    given = {"state_dir": str(folder / "state"), "tokens_file": str(tokens), **settings}
    config.write_text(json.dumps({k: v for k, v in given.items() if v is not None}))
    process = run(config)
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


def one_line(said: str) -> str:
    """The message for the operator: one line, after what was logged."""
    lines = [line for line in said.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, said
    assert lines[0].startswith("muster coordinator: ")
    return lines[0]


def not_a_folder(folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("")
    return {"state_dir": str(folder / "file" / "state")}


def no_journal(folder: Path) -> dict[str, Any]:
    (folder / "state").mkdir()
    (folder / "state" / "journal.sqlite").write_text("something else\n" * 200)
    return {}


def open_tokens(folder: Path) -> dict[str, Any]:
    token_file(folder / "tokens")
    (folder / "tokens").chmod(0o644)
    return {}


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (lambda _: {"listen": {"host": "0.0.0.0", "port": 0}}, 2, "without TLS"),
        (lambda _: {"listen": {"port": "x"}}, 2, "listen.port"),
        (lambda _: {"lise_s": 5}, 2, "lease_s"),
        (lambda _: {"tokens_file": "/nonexistent/tokens"}, 2, "no tokens file"),
        (open_tokens, 2, "chmod 600"),
        (lambda f: {"tls": {"cert": f"{f}/no.crt", "key": f"{f}/no.key"}}, 2, "tls.cert"),
        (not_a_folder, 1, "cannot be used as a state folder"),
        (no_journal, 1, "not a journal of Muster"),
        (lambda _: {"listen": {"host": "192.0.2.1.invalid", "port": 0}}, 2, "without TLS"),
    ],
)
def test_a_failed_start_is_reported_in_one_line(
    tmp_path: Path, settings: Callable[[Path], dict[str, Any]], code: int, said: str
) -> None:
    given = settings(tmp_path)
    found, text = start(tmp_path, **{"listen": {"port": 0}, **given})
    assert (found, said in one_line(text)) == (code, True), text


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = start(tmp_path, listen={"port": port})
    assert code == 1
    assert f"127.0.0.1:{port} cannot be used: " in one_line(text)
    assert f"(process {os.getpid()})" in text, "who has it"


def test_a_state_folder_in_use_is_named_with_its_holder(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path).start() as coordinator:
        code, text = start(tmp_path, listen={"port": 0})
        assert code == 1
        assert coordinator._process is not None
        assert f"process {coordinator._process.pid}" in one_line(text)


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield manager


def test_it_notifies_systemd_that_it_serves(tmp_path: Path, notified: socket.socket) -> None:
    with CoordinatorProcess(tmp_path).start() as coordinator:
        ready = notified.recv(1000)
        assert ready.startswith(b"READY=1")
        port = int(ready.rpartition(b":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
        assert coordinator.terminate() == 0
    assert notified.recv(1000) == b"STOPPING=1"


def test_it_is_not_ready_before_it_serves(tmp_path: Path, notified: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _ = start(tmp_path, listen={"port": taken.getsockname()[1]})
    assert code == 1
    notified.setblocking(False)
    with pytest.raises(BlockingIOError):
        notified.recv(1000)


def test_it_feeds_the_watchdog(
    tmp_path: Path, notified: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with CoordinatorProcess(tmp_path).start():
        assert notified.recv(1000).startswith(b"READY=1")
        assert [notified.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3


def test_stopping_lets_everybody_go_and_leaves_the_job_alone(
    tmp_path: Path, measured: Callable[[int, float], None]
) -> None:
    async def main() -> None:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            job = await user.submit()
            await agent.expect(PrepareTask)
            waiting = asyncio.create_task(user.get(f"/v1/jobs/{job}/wait?timeout_s=60"))
            began = time.monotonic()
            stopping = asyncio.create_task(asyncio.to_thread(coordinator.terminate))
            async with asyncio.timeout(DEADLINE_S):
                message = await agent.socket.receive()
                assert message.type is aiohttp.WSMsgType.CLOSE, message
                assert (message.data, message.extra) == (1001, "the coordinator is restarting")
                assert await stopping == 0
            measured(7, time.monotonic() - began)
            try:
                assert (await waiting)["state"] == "PREPARING", "the job itself goes on"
            except aiohttp.ClientError:
                pass  # it had not been asked yet when the coordinator stopped listening

    async def after() -> None:
        async with user_of(coordinator) as user:
            assert (await user.get("/v1/jobs/1"))["state"] == "PREPARING"
            async with user.http.get("/readyz") as ready:
                assert ready.status == 200

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main())
        coordinator.start()
        asyncio.run(after())


def write_certificate(folder: Path, authority: trustme.CA) -> dict[str, str]:
    """Renew like the tools: one file after the other, each in the place of the old one."""
    issued = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    for name, text in (("cert.pem", chain), ("key.pem", issued.private_key_pem.bytes())):
        write_atomic(folder / name, text, 0o600)
    return {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_a_certificate_and_a_key_switch_tls_on(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = write_certificate(tmp_path, authority)

    async def main(process: CoordinatorProcess) -> None:
        async with aiohttp.ClientSession(headers=process.headers()) as session:
            secure = f"https://127.0.0.1:{process.port}/v1/version"
            async with session.get(secure, ssl=trusting(authority)) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{process.port}/healthz")

    process = CoordinatorProcess(tmp_path, tls=tls).start()
    try:
        asyncio.run(main(process))
    finally:
        process.kill()


def test_a_certificate_that_is_renewed_is_shown_from_then_on(tmp_path: Path) -> None:
    before, after = trustme.CA(), trustme.CA()
    tls = write_certificate(tmp_path, before)

    async def heard(process: CoordinatorProcess, event: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            while not process.events(event):  # noqa: ASYNC110 - another process logs it
                await asyncio.sleep(0.01)
        return process.events(event)[0]

    async def main(process: CoordinatorProcess) -> None:
        secure = f"https://127.0.0.1:{process.port}/v1/version"
        async with aiohttp.ClientSession(headers=process.headers()) as session:
            good = (tmp_path / "key.pem").read_bytes()
            write_atomic(tmp_path / "key.pem", b"no key", 0o600)
            problem = await heard(process, "certificate_unreadable")
            assert f"{tmp_path / 'key.pem'} cannot be used" in problem["why"]
            async with session.get(secure, ssl=trusting(before)) as answer:
                assert answer.status == 200, "the one of before stays good"
            write_atomic(tmp_path / "key.pem", good, 0o600)
            write_certificate(tmp_path, after)
            await heard(process, "certificate_read")
        async with aiohttp.ClientSession(headers=process.headers()) as session:
            async with session.get(secure, ssl=trusting(after)) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(secure, ssl=trusting(before))

    with CoordinatorProcess(tmp_path, tls=tls).start() as process:
        asyncio.run(main(process))


def test_the_tokens_file_is_imported_once(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    tokens = tmp_path / "tokens"
    with process.start():
        assert process.logged("TokensImported")
        bob = add_token(process, "bob")
        assert process.terminate() == 0
        text = tokens.read_text()
        tokens.write_text('{"tokens": []}')
        process.log.clear()
        process.start()
        (warning,) = process.logged("tokens_file_not_read")
        assert "muster user" in warning["why"]
        assert whoami(process, process.admin) == "admin-user"
        assert process.terminate() == 0
        tokens.write_text(f"# a comment\n{text}")
        process.log.clear()
        process.start()
        assert process.events("tokens_file_not_read") == []
        process.kill()
        tokens.unlink()
        process.start()
        assert whoami(process, bob) == "bob"
    assert process.events("tokens_file_not_read") == []


def test_an_admin_is_made_without_a_token(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    program = [sys.executable, "-m", "orchestrator", "--config", str(process.config)]

    def new_admin(name: str) -> "subprocess.CompletedProcess[str]":
        given = [*program, "--new-admin", name]
        return subprocess.run(given, cwd=TREE, capture_output=True, text=True, check=False)

    with process.start():
        add_token(process, "ada", "viewer")
        refused = new_admin("ada")
        assert (refused.returncode, "stop it first" in refused.stderr) == (1, True), refused.stderr
        assert process.terminate() == 0
        for name in ("a b", "a\n", "muster"):
            assert new_admin(name).returncode == 2
        made = new_admin("ada")
        assert made.returncode == 0, made.stderr
        process.start()
        token = made.stdout.strip()
        assert whoami(process, token) == "ada"
        assert add_token(process, "eve")
        request = urllib.request.Request(f"{process.url}/v1/users", headers=process.headers(token))
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            assert b'"ada"' in answer.read()


def test_a_backup_has_users_and_tokens(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    with process.start():
        ann, bob = add_token(process, "ann"), add_token(process, "bob")
        status, said = command(tmp_path, "backup", "BACKUP")
        assert status == 0
        code = tmp_path / "state/bundles"
        assert f"the code of jobs is not in it: {code}" in said
        for path in ("/v1/users/ann/disable", f"/v1/tokens/{bob.split('_')[2]}/revoke"):
            url, headers = f"{process.url}{path}", process.headers()
            request = urllib.request.Request(url, b"{}", headers)
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                assert answer.status == 200
        assert process.terminate() == 0
        assert command(tmp_path, "restore", "BACKUP")[0] == 0
        process.start()
        # docs/how-to/people.md warns that a restore brings back disabled users and revoked tokens.
        assert [whoami(process, token) for token in (ann, bob)] == ["ann", "bob"]


def whoami(process: CoordinatorProcess, token: str) -> str:
    request = urllib.request.Request(f"{process.url}/v1/version", headers=process.headers(token))
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return str(json.load(answer)["user"])

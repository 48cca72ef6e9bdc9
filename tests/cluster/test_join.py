"""Nodes that join by one line, and those who try to get in without."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from agent import join
from muster.daemon.certificates import new_authority, new_key, server_certificate, signing_request
from muster.daemon.clock import SystemClock
from muster.daemon.tls import client_context
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.states import TaskState
from tests.cluster.enrolment import Site, running
from tests.cluster.jobs import until
from tests.orchestrator.fake_agent import FakeAgent, prepared


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_one_user_for_all_jobs_is_what_the_operator_means(site: Site) -> None:
    """The line of `up --run-as` warns of no choice that it made itself."""
    target, config = f"127.0.0.1:{site.port}", site.root / "cpu-30" / "agent.yaml"
    words = ("join", target, "--node", "cpu-30", "--dir", "cpu-30", "--no-start")
    done = site.muster(*words, "--run-as", "nobody", stdin=f"{site.secret()}\n")
    assert yaml.safe_load(config.read_text())["single_team"] is True
    assert "set `run_as: SUBMITTER`" not in done.stdout
    # A choice of their own stays.
    config.write_text(config.read_text().replace("single_team: true", "single_team: false"))
    site.muster(*words, "--run-as", "nobody", stdin=f"{site.secret()}\n")
    assert yaml.safe_load(config.read_text())["single_team"] is False


def test_a_node_beside_its_coordinator_does_not_take_its_port() -> None:
    """Otherwise the coordinator could not start again while the agent runs."""
    assert join.peer_port_beside("127.0.0.1", 7079) == 7080
    assert join.peer_port_beside("localhost", 7079) == 7080
    assert join.peer_port_beside("127.0.0.1", 7099) is None
    assert join.peer_port_beside("192.0.2.1", 7079) is None  # no machine has it
    assert join.peer_port_beside("nowhere.invalid", 7079) is None


def test_a_hardened_shell_closes_nothing_that_others_need(tmp_path: Path) -> None:
    site = Site(tmp_path, wheels=True)
    before = os.umask(0o077)
    try:
        site.up({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)})
        site.serve()
        (tmp_path / "var").mkdir(mode=0o755)
        words = ("--state-dir", "var/muster/agent", "--run-as", "SUBMITTER", "--no-start")
        target = f"127.0.0.1:{site.port}"
        site.muster("join", target, *words, "--dir", "n", stdin=f"{site.secret()}\n")
    finally:
        os.umask(before)
        for daemon in site.daemons:
            daemon.stop()
    for name in ("etc", "etc/ca.pem", "etc/coordinator.yaml", "n", "n/agent.yaml", "n/ca.pem"):
        assert (tmp_path / name).stat().st_mode & 0o044 == 0o044, name
    for name in ("var/muster", "var/muster/agent"):
        assert (tmp_path / name).stat().st_mode & 0o011 == 0o011, name
    for name in ("etc/ca-key.pem", "etc/server-key.pem", "etc/tokens.yaml", "client.yaml"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
    assert (tmp_path / "var/muster/agent/node.pem").stat().st_mode & 0o077 == 0


def test_a_node_joins_by_one_line_and_is_in_the_pool(site: Site) -> None:
    secret = site.secret("--names", "gpu-*", "--pool", "lab")
    done = site.join("gpu-01", secret)
    assert secret not in done.stdout + done.stderr
    assert site.certificate("gpu-01").stat().st_mode & 0o777 == 0o600
    # pytest's own folders let no other user pass.
    closed = os.geteuid() == 0
    assert ("every job would be refused: users, whom jobs run as" in done.stdout) == closed
    assert ("1 problem," if closed else "0 problems") in done.stdout, done.stdout
    site.agent("gpu-01")
    until(lambda: site.links().get("gpu-01") == "connected", "the node is in the pool")
    assert site.client().node("gpu-01").pool == "lab"
    for certificate in ('"tls.cert",name=""', '"tls.ca",name=""', '"node",name="gpu-01"'):
        assert f"muster_certificate_end_seconds{{certificate={certificate}}} " in site.metrics()
    # One use; but the machine that used it may repeat the line.
    assert "used up" in site.join("gpu-02", secret, code=1).stderr
    site.join("gpu-01", secret)


def test_a_node_that_joins_again_keeps_its_settings(site: Site) -> None:
    site.join("cpu-20", site.secret("--pool", "lab"))
    config = site.root / "cpu-20" / "agent.yaml"
    own = """\
# by hand
single_team: true
uid_min: 2000
prolog: /opt/site/prolog
labels:
  rack: "7"  # the left one
interface: eth0
python: /opt/training/bin/python
"""
    first = config.read_text()
    config.write_text(own + first.replace("https://", "http://old-") + "gpus: 0")
    before = yaml.safe_load(config.read_text())
    target = f"127.0.0.1:{site.port}"
    # Neither --node, --run-as nor a pool.
    again = site.muster(
        "join", target, "--dir", "cpu-20", "--no-start", stdin=f"{site.secret()}\n"
    ).stdout
    text = config.read_text()
    assert text.startswith(own)
    assert yaml.safe_load(text) == before | yaml.safe_load(first)
    [line] = [each for each in again.splitlines() if "joined" in each]
    assert line.startswith(f"cpu-20 joined {target}; changed coordinator and kept single_team, uid")
    assert site.certificate("cpu-20").exists()


def test_settings_that_are_not_one_on_each_line_are_kept_without_comments(site: Site) -> None:
    config = site.root / "cpu-21" / "agent.yaml"
    config.parent.mkdir()
    config.write_text('{uid_min: 2000, "node": "cpu-99", hosts: {mode: off}}  # mine')
    done = site.join("cpu-21", site.secret())
    found = yaml.safe_load(config.read_text())
    assert (found["uid_min"], found["node"], found["hosts"]) == (2000, "cpu-21", {"mode": "off"})
    assert "comments" in done.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a list", "expected settings"),
        ("node: [", "agent.yaml: line"),
        ("uid_min: no", "uid_min"),
        ("nodes: x", "no such setting"),
    ],
)
def test_a_configuration_that_cannot_be_read_costs_no_secret(
    site: Site, text: str, why: str
) -> None:
    secret, config = site.secret(), site.root / "cpu-22" / "agent.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(text)
    assert why in site.join("cpu-22", secret, code=1).stderr
    assert config.read_text() == text
    config.unlink()
    assert "wrong" not in site.join("cpu-23", secret).stderr


def test_root_as_the_user_of_jobs_costs_no_secret(site: Site) -> None:
    secret, target = site.secret(), f"127.0.0.1:{site.port}"
    words = ("join", target, "--node", "cpu-24", "--dir", "cpu-24", "--no-start")
    done = site.muster(*words, "--run-as", "root", stdin=f"{secret}\n", code=1)
    assert "allow_root_jobs" in done.stderr
    assert not (site.root / "cpu-24").exists()
    assert "joined" in site.join("cpu-24", secret).stdout


def test_a_join_for_other_users_needs_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sudo curl ... | sh` runs the shell as its caller."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(join, "fetch_ca", lambda *_: pytest.fail("the coordinator was asked"))
    secret = f"mj1.{'0' * 64}.abcd1234-{'s' * 48}"
    assert join.main(["127.0.0.1:1", secret, "--run-as", "trainer"]) == 1
    assert "sudo env MUSTER_JOIN=SECRET sh -s -- --run-as USER" in capsys.readouterr().err


def test_what_is_not_a_good_secret_lets_nobody_in(site: Site) -> None:
    secret = site.secret("--names", "cpu-*")
    ca, _, own = secret.removeprefix("mj1.").partition(".")
    assert "is for nodes named cpu-*" in site.join("gpu-09", secret, code=1).stderr
    wrong = f"mj1.{ca}.{own[:-1]}{'0' if own[-1] != '0' else '1'}"
    assert "wrong or revoked" in site.join("cpu-09", wrong, code=1).stderr
    assert "not a whole join secret" in site.join("cpu-09", secret[:40], code=2).stderr
    site.muster("token", "revoke", "--join", own.partition("-")[0])
    assert "wrong or revoked" in site.join("cpu-09", secret, code=1).stderr
    assert "cpu-09" not in site.links()


def test_agents_get_no_token_where_nodes_join_with_a_secret(site: Site) -> None:
    refused = site.muster("token", "create", "--role", "join", code=125)
    assert "make one: muster token create --join" in refused.stderr
    assert "join" not in site.muster("token", "list").stdout


def test_a_request_for_another_name_is_not_signed(site: Site) -> None:
    _, _, own = site.secret().removeprefix("mj1.").partition(".")
    asked = {"secret": own, "node": "gpu-10", "request": signing_request(new_key(), "gpu-11")}
    assert site.post("/v1/join", asked) == (422, "bad_signing_request")
    asked["node"] = "127.0.0.1"
    asked["request"] = signing_request(new_key(), "127.0.0.1")
    assert site.post("/v1/join", asked) == (409, "bad_name")


def test_nothing_of_a_request_is_read_before_its_secret_is_known(site: Site) -> None:
    _, _, own = site.secret().removeprefix("mj1.").partition(".")
    asked = {"secret": own, "node": "gpu-12", "request": "not a signing request"}
    assert site.post("/v1/join", asked) == (422, "bad_signing_request")
    asked["secret"] = own[:-1] + ("0" if own[-1] != "0" else "1")
    assert site.post("/v1/join", asked) == (403, "bad_join_secret")


def test_a_join_that_is_repeated_many_times_waits(site: Site) -> None:
    """Five at once, then one a minute; another machine with the same secret keeps no node out."""
    _, _, own = site.secret("--uses", "2").removeprefix("mj1.").partition(".")

    def joins() -> tuple[int, str]:
        status, answer = site.answer("/v1/join", asked)
        return status, answer.get("detail", "")

    asked = {"secret": own, "node": "gpu-13", "request": signing_request(new_key(), "gpu-13")}
    clock = SystemClock()
    began, answers = clock.now().mono, [joins()]
    while answers[-1][0] == 201 and len(answers) < 50:
        answers.append(joins())
    minutes = (clock.now().mono - began) / 60
    passed = sum(status == 201 for status, _ in answers)
    assert 5 <= passed <= 5 + minutes
    assert answers[-1] == (429, "too many joins of gpu-13")
    asked["request"] = signing_request(new_key(), "gpu-13")
    assert joins()[0] == 201


@contextlib.contextmanager
def impostor(folder: Path, pem: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server with a certificate of its own CA that shows `pem`. Yields its port, and the bodies
    that it gets."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(pem)))
            self.end_headers()
            self.wfile.write(pem)

        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: Any) -> None:
            pass

    now = SystemClock().now().wall
    key = new_key()
    cert = server_certificate(new_authority(now), key, ("localhost",), ("127.0.0.1",), now)
    (folder / "impostor.pem").write_bytes(cert + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "impostor.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("shows", ["its own CA", "the real CA"])
def test_a_man_in_the_middle_gets_no_secret(tmp_path: Path, shows: str) -> None:
    real = new_authority(SystemClock().now().wall).cert
    shown = real if shows == "the real CA" else b"another"
    secret = f"mj1.{hashlib.sha256(real).hexdigest()}.abcd1234-{'s' * 48}"
    with impostor(tmp_path, shown) as (port, got):
        done = Site(tmp_path, port=port).join("gpu-01", secret, code=1)
    assert got == []
    refused = (
        "the join secret was not sent; check the address; if the coordinator has a new CA, ask"
    )
    assert refused in done.stderr or "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_a_known_name_waits_for_an_operator_and_a_revoked_node_is_cut(site: Site) -> None:
    site.join("gpu-03", site.secret())
    site.agent("gpu-03")
    until(lambda: site.links().get("gpu-03") == "connected", "the node is in the pool")
    mine = site.certificate("gpu-03").read_bytes()

    site.muster("node", "revoke", "gpu-03")
    until(lambda: site.links()["gpu-03"] != "connected", "the node is cut off")
    assert "revoked; to take it back" in " ".join(site.muster("nodes").stdout.split())
    assert site.post("/v1/agent/certificate", {"request": ""}, "gpu-03")[0] == 401

    other = site.root / "thief"
    other.mkdir()
    thief = Site(other, port=site.port)
    assert "waits for" in thief.join("gpu-03", site.secret()).stdout
    assert "gpu-03" in site.muster("token", "list", "--join").stderr
    site.muster("node", "accept", "gpu-03", "--reject")
    site.certificate("gpu-03").write_bytes(mine)
    assert "waits for" in site.join("gpu-03", site.secret()).stdout
    site.muster("node", "accept", "gpu-03")
    assert site.post("/v1/agent/certificate", {"request": ""}, "gpu-03") == (
        422,
        "bad_signing_request",
    )


def test_a_node_that_was_accepted_is_in_the_pool_with_its_next_dial(site: Site) -> None:
    site.join("gpu-31", site.secret())
    site.muster("node", "revoke", "gpu-31")
    site.join("gpu-31", site.secret())
    agent = site.agent("gpu-31")

    def refused() -> list[dict[str, Any]]:
        lines = map(json.loads, agent.log.read_text().splitlines())
        return [line for line in lines if line["event"] == "not_connected"]

    until(lambda: bool(refused()), "the node waits")
    site.muster("node", "accept", "gpu-31")
    until(lambda: site.links().get("gpu-31") == "connected", "the node is in the pool")
    assert all("waits for `muster node accept`" in line["why"] for line in refused())
    # One more dial than those that were refused, the last of them before it was accepted.
    assert all(5 <= line["pause_s"] <= 8 for line in refused())
    # Many that wait for days fill no journal.
    said = map(json.loads, site.daemons[0].log.read_text().splitlines())
    assert not [line for line in said if line.get("token_id") and line.get("status") == 401]


def test_a_copied_state_folder_joins_with_a_key_of_its_own(site: Site) -> None:
    site.join("gpu-32", site.secret())
    shutil.copytree(site.root / "gpu-32", site.root / "gpu-33")
    done = site.join("gpu-33", site.secret()).stdout
    assert "it is gpu-32's: this node has made a new key" in " ".join(done.split())
    assert "gpu-33 joined" in done
    keys = [site.certificate(node).read_bytes()[-100:] for node in ("gpu-32", "gpu-33")]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("head", "head", 7077),
        ("head:1234", "head", 1234),
        ("https://head.lab/", "head.lab", 7077),
        ("https://10.0.0.1:1", "10.0.0.1", 1),
        ("::1", "::1", 7077),
        ("fd00::7", "fd00::7", 7077),
        ("[fd00::7]", "fd00::7", 7077),
        ("[fd00::7]:99", "fd00::7", 99),
    ],
)
def test_a_coordinator_is_named_with_or_without_its_port(text: str, host: str, port: int) -> None:
    assert join._target(text) == (host, port)


@pytest.mark.parametrize("text", ["", ":7077", "head:", "head:0", "head:65536", "head:x", "a b"])
def test_what_is_no_coordinator_is_refused(text: str) -> None:
    with pytest.raises(join.JoinError, match="such as head:7077"):
        join._target(text)


def test_a_node_whose_agent_never_connected_is_listed_and_can_be_forgotten(site: Site) -> None:
    site.join("gpu-34", site.secret())
    for words in (("nodes",), ("node", "show", "gpu-34")):
        text = " ".join(site.muster(*words).stdout.split())
        assert "from 127.0.0.1, not connected since; look there at systemctl status" in text
    assert site.links()["gpu-34"] == "offline"
    assert "muster_nodes_joined_only " in site.metrics()
    site.muster("node", "remove", "gpu-34")
    assert "gpu-34" not in site.links()
    assert site.post("/v1/agent/certificate", {"request": ""}, "gpu-34")[0] == 401


async def test_a_node_gets_the_code_of_its_own_tasks_alone(site: Site) -> None:
    """Another node of the cluster has the ticket, and gets nothing by it."""
    for node in ("gpu-06", "gpu-07"):
        await asyncio.to_thread(site.join, node, site.secret())
    code = site.root / "code"
    code.mkdir()
    (code / "train.py").write_text("1")
    context = client_context(site.root / "etc" / "ca.pem", site.certificate("gpu-06"))

    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[FakeAgent]:
        url = f"https://127.0.0.1:{site.agents_port}"
        async with (
            aiohttp.ClientSession(url) as http,
            http.ws_connect("/v1/agent", ssl=context) as link,
        ):
            agent = FakeAgent(link, "gpu-06")
            await agent.hello()
            yield agent

    async with connected():
        pass  # so that the coordinator knows the node, and takes a job for it
    where = ("--set", "placement.include=[gpu-06]", "--set", "workdir=code")
    await asyncio.to_thread(site.muster, "submit", *where, "--", "true")
    async with connected() as agent:
        order = await agent.expect(PrepareTask)
        path = f"/v1/agent/tasks/{order.task}/peers"

        async def ask(node: str, ticket: str) -> int:
            body = {"port": 7000}
            return (await asyncio.to_thread(site.answer, path, body, node, "", ticket))[0]

        assert await ask("gpu-06", order.ticket) == 200
        assert await ask("gpu-07", order.ticket) == 404
        assert await ask("gpu-06", "") == 404
        await agent.report(order.task, TaskState.PREPARED, prepared=prepared())
        await agent.arrange(order.task)
        await agent.finish(order.task)

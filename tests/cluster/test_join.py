"""A cluster by `muster up` and `muster join`, and those who try to get in without."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography import x509

from agent import join
from agent.link.dialer import ConnectionLostError, Dialer
from agent.link.renewal import CertificateRenewal
from examples.local_cluster import MUSTER, Daemon, free_port
from muster.client import Client, load_settings
from muster.daemon.certificates import new_authority, new_key, server_certificate, signing_request
from muster.daemon.clock import SystemClock
from muster.daemon.tls import client_context
from muster.daemon.units import make_readable
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.states import TaskState
from tests.cluster.jobs import until
from tests.orchestrator.fake_agent import FakeAgent, prepared


@dataclass
class Site:
    """A folder in which `muster up` and `muster join` write, and the daemons of it."""

    root: Path
    options: tuple[str, ...] = ()
    wheels: bool = False
    port: int = field(default_factory=free_port)
    agents_port: int = field(default_factory=free_port)
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        return {**kept, "HOME": str(self.root), "MUSTER_CONFIG": str(self.root / "client.yaml")}

    def muster(
        self,
        *words: str,
        stdin: str = "",
        code: int = 0,
        timeout_s: float = 240,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [MUSTER, *words],
            env={**self.env, **(env or {})},
            cwd=self.root,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def up(self, env: Mapping[str, str] | None = None) -> str:
        where = ("--dir", "etc", "--listen", "127.0.0.1", "--name", "127.0.0.1")
        ports = ("--port", str(self.port), "--agents-port", str(self.agents_port))
        given = (*where, *ports, "--run-as", "SUBMITTER", "--user", "ada", "--no-start")
        wheels = () if self.wheels else ("--no-wheels",)
        return self.muster("up", *given, *wheels, *self.options, timeout_s=100, env=env).stdout

    def start(self, name: str, *words: str, **env: str) -> Daemon:
        made = Daemon(name, [MUSTER, *words], {**self.env, **env}, self.root / f"{name}.log")
        self.daemons.append(made)
        made.start()
        return made

    def serve(self) -> None:
        config = str(self.root / "etc" / "coordinator.yaml")
        daemon = self.start("coordinator", "coordinator", "--config", config)
        until(lambda: '"serving"' in daemon.tail(), "the coordinator serves")

    def secret(self, *options: str) -> str:
        line = self.muster("token", "create", "--join", *options).stdout
        return line.split()[3]

    def join(self, node: str, secret: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        where = ("--dir", node, "--no-start", "--run-as", "SUBMITTER")
        target = f"127.0.0.1:{self.port}"
        return self.muster("join", target, "--node", node, *where, stdin=f"{secret}\n", code=code)

    def agent(self, node: str) -> Daemon:
        own = {
            "MUSTER_AGENT_PEER_PORT": str(free_port()),
            "MUSTER_AGENT_SHARED_HOST": "true",
            "MUSTER_AGENT_SHIMS": "forked",
        }
        config = str(self.root / node / "agent.yaml")
        return self.start(node, "agent", "--config", config, **own)

    def client(self) -> Client:
        return Client.of(load_settings(self.env))

    def links(self) -> dict[str, str]:
        return {node.name: node.link for node in self.client().nodes().nodes}

    def metrics(self) -> str:
        context = client_context(self.root / "etc" / "ca.pem", None)
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        token = load_settings(self.env).token
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().read().decode()

    def certificate(self, node: str) -> Path:
        return self.root / node / "agent" / "node.pem"

    def post(self, path: str, body: object, node: str = "", token: str = "") -> tuple[int, str]:
        """POST as `answer`, and return the status and the code of the problem."""
        status, found = self.answer(path, body, node, token)
        return status, found.get("code", "")

    def answer(
        self, path: str, body: object, node: str = "", token: str = "", ticket: str = ""
    ) -> tuple[int, dict[str, str]]:
        """POST to the users' port, or with a node's certificate to that of the agents."""
        ca = self.root / "etc" / "ca.pem"
        context = client_context(ca, self.certificate(node) if node else None)
        port = self.agents_port if node else self.port
        connection = HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        headers = {"Content-Type": "application/json", "X-Muster-Ticket": ticket}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@contextlib.contextmanager
def running(root: Path, *options: str) -> Iterator[Site]:
    site = Site(root, options)
    try:
        site.up()
        site.serve()
        yield site
    finally:
        for daemon in reversed(site.daemons):
            daemon.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_up_writes_a_whole_cluster_and_changes_nothing_when_it_runs_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = site.up()
    assert f"muster join 127.0.0.1:{site.port} --run-as SUBMITTER" in first
    assert "muster user add" in first
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    private = {path.name for path in files if path.stat().st_mode & 0o777 == 0o600}
    assert private == {"ca-key.pem", "server-key.pem", "tokens.yaml", "client.yaml"}
    config = yaml.safe_load((tmp_path / "etc/coordinator.yaml").read_text())
    assert config["pools"] == {"default": {"defaults": {"time_limit": "1d"}}}
    site.muster("coordinator", "--config", "etc/coordinator.yaml", "--check")

    assert site.up() == first
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files} == before
    assert "muster_" not in first


def test_up_needs_no_other_program(tmp_path: Path) -> None:
    """A small system has no `ip`. The certificate is for the addresses of the machine all the
    same."""
    site = Site(tmp_path)
    site.up({"PATH": "/nowhere"})
    certificate = x509.load_pem_x509_certificate((tmp_path / "etc" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert "127.0.0.1" in found
    # Without a route there is no other.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        assert probe.getsockname()[0] in found


def test_up_and_join_ask_for_the_user_of_the_jobs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert "--run-as" in site.muster("up", "--dir", "etc", "--no-start", code=2).stderr
    assert not (tmp_path / "etc").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the text is for root")
def test_up_says_who_is_the_first_admin_and_as_whom_jobs_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    words = ("--dir", "etc", "--name", "127.0.0.1", "--no-start", "--no-wheels")
    said = site.muster("up", *words, "--run-as", "trainer", "--user", "ada").stderr
    said = " ".join(said.split())
    assert f"ada is the first admin, with the token in {tmp_path}/client.yaml" in said
    # Not by PATH: sudo may have one without /usr/local/bin.
    assert f"sudo {MUSTER} nodes" in said
    assert f"sudo {MUSTER} token create --user ada" in said
    assert "useradd --create-home trainer" in said
    assert "single_team: true" in said


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


def test_an_installation_can_be_opened_for_all(tmp_path: Path) -> None:
    venv, out = tmp_path / "venv", tmp_path / "out"
    (venv / "bin").mkdir(parents=True)
    out.write_text("")
    (venv / "bin" / "muster").write_text("")
    (venv / "pyvenv.cfg").write_text("")
    (venv / "link").symlink_to(out)
    for path, mode in (
        (out, 0o600),
        (venv / "bin" / "muster", 0o700),
        (venv / "pyvenv.cfg", 0o600),
    ):
        path.chmod(mode)
    for path in (venv / "bin", venv):
        path.chmod(0o700)
    assert make_readable(venv)
    assert not make_readable(venv)
    modes = [path.stat().st_mode & 0o777 for path in (venv, venv / "bin", venv / "bin" / "muster")]
    assert modes == [0o755, 0o755, 0o755]
    assert (venv / "pyvenv.cfg").stat().st_mode & 0o777 == 0o644
    assert out.stat().st_mode & 0o777 == 0o600


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
    _, _, own = site.secret().removeprefix("mj1.").partition(".")
    asked = {"secret": own, "node": "gpu-13", "request": signing_request(new_key(), "gpu-13")}
    answers = [site.post("/v1/join", asked)[0] for _ in range(3)]
    while answers[-1] == 201 and len(answers) < 100:
        answers.append(site.post("/v1/join", asked)[0])
    assert answers[:2] == [201, 201]
    assert answers[-1] == 429


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


def test_the_agents_port_is_for_certificates_and_agents_only(site: Site) -> None:
    site.join("gpu-04", site.secret())
    admin = load_settings(site.env).token
    context = client_context(site.root / "etc" / "ca.pem")
    connection = HTTPSConnection("127.0.0.1", site.agents_port, timeout=30, context=context)

    def ask() -> None:
        connection.request("GET", "/v1/nodes", headers={"Authorization": f"Bearer {admin}"})
        connection.getresponse().read()

    with contextlib.closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
        ask()
    status, problem = site.answer("/v1/jobs", {}, "gpu-04")
    assert (status, problem["detail"]) == (403, "a node's certificate is not a user's token")
    # A certificate is a node, whatever token comes with it.
    assert site.post("/v1/join/secrets", {}, "gpu-04", admin) == (403, "forbidden")


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


def test_the_users_port_has_nothing_for_agents(site: Site) -> None:
    """They have a listener of their own, which demands a certificate."""
    admin = load_settings(site.env).token
    for token in ("", admin, f"muster_join_{'0' * 8}_{'0' * 64}"):
        renew = site.post("/v1/agent/certificate", {"request": ""}, token=token)
        assert renew == (404, "no_such_route")
        peers = site.post("/v1/agent/tasks/1.1.n1/peers", {}, token=token)
        assert peers == (404, "no_such_route")


async def test_a_certificate_is_renewed_and_a_copy_of_the_old_one_ends_both(site: Site) -> None:
    await asyncio.to_thread(lambda: site.join("gpu-05", site.secret()))
    path = site.certificate("gpu-05")
    first = path.read_bytes()
    stolen = path.with_name("stolen.pem")
    stolen.write_bytes(first)
    ca, url = site.root / "etc" / "ca.pem", f"https://127.0.0.1:{site.agents_port}"

    async def renew(file: Path) -> str:
        """Renew once; returns why not."""
        async with Dialer(url, None, ca, file) as dialer:
            renewal = CertificateRenewal(dialer, file, "gpu-05", SystemClock())
            try:
                await renewal.step(file, at_once=True)
            except ConnectionLostError as error:
                return str(error)
        return ""

    assert await renew(path) == ""
    assert path.read_bytes() != first
    assert "renewed twice" in await renew(stolen)
    assert "no node has this certificate" in await renew(path)


@contextlib.contextmanager
def thief(site: Site, node: str) -> Iterator[Daemon]:
    """An agent that has a copy of a node's certificate and key, and has renewed it."""
    own = site.root / f"thief-of-{node}"
    (own / "agent").mkdir(parents=True)
    copy = own / "agent" / "node.pem"
    shutil.copy(site.certificate(node), copy)
    text = (site.root / node / "agent.yaml").read_text()
    (own / "agent.yaml").write_text(text.replace(f"/{node}/agent", f"/{own.name}/agent"))

    async def renew() -> None:
        ca, url = site.root / "etc" / "ca.pem", f"https://127.0.0.1:{site.agents_port}"
        async with Dialer(url, None, ca, copy) as dialer:
            await CertificateRenewal(dialer, copy, node, SystemClock()).step(copy, at_once=True)

    asyncio.run(renew())
    daemon = site.agent(own.name)
    try:
        yield daemon
    finally:
        daemon.stop()


def test_a_node_whose_copy_came_first_ends_both_at_once(site: Site) -> None:
    """The copy was renewed and connected while the node was away."""
    site.join("gpu-30", site.secret())
    agent = site.agent("gpu-30")
    until(lambda: site.links().get("gpu-30") == "connected", "the node is in the pool")
    agent.stop()
    until(lambda: site.links()["gpu-30"] != "connected", "the node is away")
    with thief(site, "gpu-30"):
        until(lambda: site.links()["gpu-30"] == "connected", "the copy has the name")
        site.agent("gpu-30")
        until(lambda: site.links()["gpu-30"] != "connected", "the copy is cut off")
        shown = " ".join(site.muster("node", "show", "gpu-30").stdout.split())
        assert "renewed twice, so a copy of its key is in use" in shown
        assert "revoked; to take it back: muster join, then muster node accept gpu-30" in shown
        assert "renewed twice" in " ".join(site.muster("nodes").stdout.split())
        assert 'muster_certificate_copied{name="gpu-30"} 1.0' in site.metrics()
        said = [
            line
            for line in map(json.loads, site.daemons[0].log.read_text().splitlines())
            if line["event"] == "NodeRevoked" and line["node"] == "gpu-30"
        ]
        assert [line["level"] for line in said] == ["warning"]
        assert "renewed twice" in said[0]["why"]
    # Neither comes back before an operator accepts the node, which makes a key of its own.
    again = site.join("gpu-30", site.secret()).stdout
    assert "this node has made a new key" in again
    assert "waits for" in again
    site.muster("node", "accept", "gpu-30")
    until(lambda: site.links()["gpu-30"] == "connected", "the node is back")
    assert 'muster_certificate_copied{name="gpu-30"}' not in site.metrics()


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

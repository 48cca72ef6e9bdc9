"""A cluster made by `muster up` and `muster join`, for the tests of those commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path

from examples.local_cluster import MUSTER, Daemon, free_port
from muster.client import Client, load_settings
from muster.daemon.tls import client_context
from tests.cluster.jobs import until


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
        return self.muster("up", *given, *wheels, *self.options, timeout_s=300, env=env).stdout

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

    def join(
        self, node: str, secret: str, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        words = ("--node", node, "--dir", node, "--no-start", "--run-as", "SUBMITTER")
        target = f"127.0.0.1:{self.port}"
        return self.muster("join", target, *words, stdin=f"{secret}\n", code=code, env=env)

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
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=300, context=context)
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
        connection = HTTPSConnection("127.0.0.1", port, timeout=300, context=context)
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

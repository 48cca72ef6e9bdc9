"""A coordinator and agents on this machine, as the processes that run on real nodes.

Used by the demo, the end-to-end tests and the benchmarks. Every agent has its own name, address in
127.0.0.0/8 and state directory. The programs are started as a user would start them.
namespace_cluster.py gives each of them a simulated machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import yaml

from muster.client import Client, ClientError, load_settings

MUSTER = str(Path(sys.executable).with_name("muster"))
START_TIMEOUT_S = 120.0
START_AGENT_S = 2.0
STOP_TIMEOUT_S = 60.0
# Neither those that agents offer to jobs, nor those that the kernel gives to connections.
_PORTS = range(10_000, 20_000)


class ClusterError(Exception):
    """A part of the cluster failed. The message names it and its last output."""


@dataclass
class Daemon:
    """A process of the cluster and its output file."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ClusterError(f"{self.name} has not been started")
        return self.process.pid

    def kill(self) -> None:
        """Kill it, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it, wait for its end, and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self._signal(number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()
            raise ClusterError(f"{self.name} did not stop in {STOP_TIMEOUT_S:g} s") from None

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def tail(self, lines: int = 12) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class LocalCluster:
    """A cluster whose configuration, state and logs are all in `root`."""

    root: Path
    agents: int = 3
    env: dict[str, str] = field(default_factory=dict)
    coordinator: Daemon = field(init=False)
    nodes: dict[str, Daemon] = field(init=False)
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.port = self._free_port()
        self._init()
        (self.root / "logs").mkdir(exist_ok=True)
        config = str(self.root / "config" / "coordinator.yaml")
        self.coordinator = self._daemon("coordinator", [MUSTER, "coordinator", "--config", config])
        self.nodes = {
            name: self._daemon(
                name, [MUSTER, "agent", "--config", str(self._agent_config(number, name))]
            )
            for number, name in ((n, f"node-{n}") for n in range(1, self.agents + 1))
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def base_env(self) -> dict[str, str]:
        """Return the environment of every process of the cluster, and of client commands."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        return {**kept, "MUSTER_CONFIG": str(self.client_config), **self.env}

    @property
    def client_config(self) -> Path:
        return self.root / "config" / "client.yaml"

    @property
    def empty(self) -> Path:
        """A folder without files: commands that run there send no code."""
        folder = self.root / "empty"
        folder.mkdir(exist_ok=True)
        return folder

    def client(self) -> Client:
        return Client.of(load_settings(self.base_env()))

    def start(self) -> None:
        """Start everything. Returns when every node can take a job."""
        self.coordinator.start()
        for agent in self.nodes.values():
            agent.start()
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        client = self.client()

        def all_free() -> bool:
            with contextlib.suppress(ClientError):
                free = [n for n in client.nodes().nodes if n.link == "connected"]
                return len(free) == len(self.nodes)
            return False

        self._until(all_free, "not every node connected")

    def stop(self) -> None:
        """Stop every daemon, agents first. Running jobs continue."""
        failed = []
        for daemon in (*self.nodes.values(), self.coordinator):
            try:
                daemon.stop()
            except ClusterError as error:
                failed.append(str(error))
        if failed:
            raise ClusterError("; ".join(failed))

    def remove(self) -> None:
        shutil.rmtree(self.root)

    def muster(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line against this cluster, in an empty folder, and return the completed
        process."""
        done = subprocess.run(
            self.command(*args),
            env=self.base_env(),
            cwd=self.empty,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"muster {' '.join(args)}: exit {done.returncode}: {done.stderr}")
        return done

    def command(self, *args: str) -> list[str]:
        """Return the command for `muster *args` against this cluster, to run in `base_env`."""
        return [MUSTER, *args]

    def survivors(self) -> list[str]:
        """Return running processes of this cluster's jobs, as `pid: command`."""
        return [line for line, env in self._processes() if b"MUSTER_TASK=" in env]

    def leftovers(self) -> list[str]:
        """Return all running processes of this cluster: jobs, shims, fork servers, daemons."""
        return [line for line, _ in self._processes()]

    def _processes(self) -> Iterator[tuple[str, bytes]]:
        mark = str(self.root).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    env = (entry / "environ").read_bytes()
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    if mark in env:
                        yield f"{entry.name}: {command.decode(errors='replace').strip()}", env

    def _free_port(self) -> int:
        return free_port()

    def _listen(self) -> list[str]:
        """Return the arguments of `muster init` for the coordinator's address."""
        return ["--listen", f"127.0.0.1:{self.port}"]

    def _daemon(self, name: str, argv: list[str]) -> Daemon:
        return Daemon(name, argv, self.base_env(), self.root / "logs" / f"{name}.log")

    def _init(self) -> None:
        config = self.root / "config"
        if not config.exists():
            done = subprocess.run(
                [MUSTER, "init", "--dir", str(config), *self._listen()],
                env=self.base_env(),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise ClusterError(f"muster init failed: {done.stderr}")

    def _agent_config(self, number: int, name: str) -> Path:
        """Write an agent's configuration; it is all that a manual restart of the agent needs."""
        made: dict[str, object] = yaml.safe_load((self.root / "config" / "agent.yaml").read_text())
        settings = {
            **made,
            "node": name,
            "state_dir": str(self.root / "state" / name),
            "gpus": 0,
            **self._place(number),
            "python": sys.executable,
            # On one's own machine, a job may have its owner's rights, and all jobs share them.
            "allow_root_jobs": os.geteuid() == 0,
            "single_team": True,
        }
        path = self.root / "config" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        return path

    def _place(self, number: int) -> dict[str, object]:
        """Return the settings of an agent that depend on its place."""
        return {"address": f"127.0.0.{10 + number}", "shared_host": True}

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        patience_s = START_TIMEOUT_S + START_AGENT_S * len(self.nodes)
        deadline = time.monotonic() + patience_s
        while not reached():
            for daemon in (self.coordinator, *self.nodes.values()):
                if daemon.process is not None and daemon.process.poll() is not None:
                    raise ClusterError(
                        f"{daemon.name} ended with code {daemon.process.returncode}; "
                        f"the end of its log:\n{daemon.tail()}"
                    )
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} in {patience_s:g} s\n{self.coordinator.tail()}")
            time.sleep(0.02)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free for TCP and UDP.

    It is below the range from which Linux gives ports to connections. Otherwise, another program
    could have it by chance before the caller listens there, or while a daemon restarts.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                probes.enter_context(socket.socket(type=kind)).bind(("127.0.0.1", port))
            return port

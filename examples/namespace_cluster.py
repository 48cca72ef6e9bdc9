"""A cluster whose coordinator and agents each run on a simulated machine: see examples/rig.

As on real nodes, the coordinator serves its network address with TLS, each agent has its machine's
name, and users are on a separate machine.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass, field

from examples.local_cluster import STOP_TIMEOUT_S, ClusterError, Daemon, LocalCluster
from examples.rig import certificates
from examples.rig.machine import Machine, pid_inside
from examples.rig.rig import Rig
from muster.client import Client, load_settings
from muster.client.config import Settings
from muster.client.http_common import CONNECT_TIMEOUT_S, HttpContext
from muster.client.sync_transport import Transport

COORDINATOR = 2
PORT = 7077


@dataclass
class MachineDaemon(Daemon):
    """A daemon of a machine, restarted after each boot of it."""

    machine: Machine | None = None
    command: list[str] = field(default_factory=list)

    def start(self) -> None:
        assert self.machine is not None
        if self.process is not None:
            # It died with the machine, and has not been reaped yet.
            self.process.wait(STOP_TIMEOUT_S)
        self.command = self.command or self.argv
        self.argv = self.machine.enter(*self.command)
        super().start()

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ClusterError(f"{self.name} has not been started")
        return pid_inside(self.process)


@dataclass
class NamespaceCluster(LocalCluster):
    """A LocalCluster on a rig: `machines` has the nodes' machines by name, `head` is the
    coordinator's.

    Needs root; `examples.rig.rig.missing()` says what else. With `transient`, `root` is removed
    with the rig, even if this process is killed. `port_range` is every node's ip_local_port_range.
    """

    transient: bool = False
    port_range: str = ""
    rig: Rig = field(init=False)
    head: Machine = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        self.rig = Rig(self.root / "machines", remove=self.root if self.transient else None)
        try:
            self.head = self.rig.add("coordinator", number=COORDINATOR)
            super().__post_init__()
        except BaseException:
            self.rig.stop()
            raise

    @property
    def machines(self) -> dict[str, Machine]:
        return {name: self.rig.machines[name] for name in self.nodes}

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self.rig.stop()

    def remove(self) -> None:
        if not self.transient:
            super().remove()

    def boot(self, name: str) -> None:
        """Switch a node's machine on again, and start its agent."""
        self.machines[name].boot()
        self.nodes[name].start()

    def client(self) -> Client:
        return _RigClient(load_settings(self.base_env()), self.rig)

    def command(self, *args: str) -> list[str]:
        return self.rig.enter(*super().command(*args))

    def _free_port(self) -> int:
        return PORT

    def _listen(self) -> list[str]:
        address = self.head.address
        made = certificates.make(self.root / "tls", address)
        tls = ["--tls-cert", str(made.cert), "--tls-key", str(made.key), "--tls-ca", str(made.ca)]
        return ["--listen", f"{address}:{PORT}", *tls]

    def _daemon(self, name: str, argv: list[str]) -> Daemon:
        plain = super()._daemon(name, argv)
        machine = (
            self.head if name == self.head.name else self.rig.add(name, port_range=self.port_range)
        )
        return MachineDaemon(name, argv, plain.env, plain.log, machine=machine)

    def _place(self, number: int) -> dict[str, object]:  # noqa: ARG002 - the machine says it
        return {}


class _RigClient(Client):
    """A client on the rig's network."""

    def __init__(self, settings: Settings, rig: Rig) -> None:
        self._begin(settings, None)
        self._transport = _RigTransport(self._exchange, rig)


class _RigTransport(Transport):
    def __init__(self, exchange: HttpContext, rig: Rig) -> None:
        super().__init__(exchange)
        self._rig = rig

    def _connection(self) -> http.client.HTTPConnection:
        exchange = self.exchange
        assert exchange.tls is not None
        return _RigConnection(self._rig, exchange.parts.hostname or "", exchange.tls)


class _RigConnection(http.client.HTTPSConnection):
    def __init__(self, rig: Rig, host: str, tls: ssl.SSLContext) -> None:
        super().__init__(host, PORT, timeout=CONNECT_TIMEOUT_S, context=tls)
        self._rig = rig

    def connect(self) -> None:
        with self._rig.network():
            super().connect()

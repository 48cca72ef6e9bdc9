"""Machines of a gang for the tests of its fence: network namespaces on one bridge."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from agent.shims.apart import NFT

PORT: Final = 20_001
IPV6: Final = socket.has_dualstack_ipv6()
SERVE = """\
import socket, sys
if socket.has_dualstack_ipv6():
    more = {"family": socket.AF_INET6, "dualstack_ipv6": True}
else:
    more = {}
server = socket.create_server(("", 20001), backlog=int(sys.argv[1]), **more)
print("ready", flush=True)
while True:
    server.accept()[0].close()
"""
# Arguments: own address and port ("" and 0: any), those of the other, the patience in seconds.
CONNECT = """\
import errno, select, socket, sys
def found(host, port):
    return socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
family, kind, proto, _, address = found(*sys.argv[3:5])
sock = socket.socket(family, kind, proto)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(found(*sys.argv[1:3])[4] if sys.argv[1] else ("", int(sys.argv[2])))
sock.setblocking(False)
error = sock.connect_ex(address)
print("begins", flush=True)
if error == errno.EINPROGRESS:
    _, ready, _ = select.select([], [sock], [], float(sys.argv[5]))
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
print("out" if error else "in", flush=True)
"""


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout


def as_user(uid: int) -> list[str]:
    """The command of a Python that all users may run, as this user."""
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", python]


class Machines:
    """Three network namespaces on one bridge: the launcher, a node of its gang, and a third."""

    def __init__(self, stem: str) -> None:
        self.names = [f"{stem}{number}" for number in (1, 2, 3)]
        self.hub = f"{stem}0"
        self.inner = f"{stem}i"

    def build(self) -> None:
        run("ip", "netns", "add", self.hub)
        hub = ("ip", "-n", self.hub)
        run(*hub, "link", "add", "br0", "type", "bridge")
        run(*hub, "link", "set", "br0", "up")
        for number, name in enumerate(self.names, 1):
            run("ip", "netns", "add", name)
            there = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run(*hub, "link", "add", f"v{number}", *there)
            run(*hub, "link", "set", f"v{number}", "master", "br0", "up")
            own = ("ip", "-n", name)
            run(*own, "address", "add", f"10.0.0.{number}/24", "dev", "eth0")
            if IPV6:
                run(*own, "link", "set", "eth0", "addrgenmode", "none")
                for address in (f"fd00::{number}/64", f"fe80::{number}/64"):
                    run(*own, "address", "add", address, "dev", "eth0", "nodad")
            run(*own, "link", "set", "eth0", "up")
            run(*own, "link", "set", "lo", "up")

    def build_inner(self) -> None:
        """A namespace behind the second machine, as of containers, with that machine's address."""
        outer = self.names[1]
        run("ip", "netns", "add", self.inner)
        there = ("type", "veth", "peer", "name", "eth0", "netns", self.inner)
        run("ip", "-n", outer, "link", "add", "inner", *there)
        run("ip", "-n", outer, "address", "add", "10.9.0.1/24", "dev", "inner")
        run("ip", "-n", outer, "link", "set", "inner", "up")
        run("ip", "-n", self.inner, "address", "add", "10.9.0.2/24", "dev", "eth0")
        run("ip", "-n", self.inner, "link", "set", "eth0", "up")
        run("ip", "-n", self.inner, "route", "add", "default", "via", "10.9.0.1")
        run("ip", "netns", "exec", outer, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        hook = "type nat hook postrouting priority 100;"
        chain = f'chain out {{\n{hook}\noifname "eth0" masquerade\n}}'
        self.apply(2, f"table ip inner {{\n{chain}\n}}\n")

    def remove(self) -> None:
        for name in (*self.names, self.hub, self.inner):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def connects(
        self, number: int, address: str, uid: int, patience_s: float = 20.0, own: str = ""
    ) -> bool:
        """True if a process of this user on a machine gets a connection from its address `own`; 0
        is the inner machine."""
        with self.connecting(number, uid, (own, 0), (address, PORT), patience_s) as process:
            return process.communicate()[0] == "in\n"

    @contextlib.contextmanager
    def connecting(
        self,
        number: int,
        uid: int,
        own: tuple[str, int],
        other: tuple[str, int],
        patience_s: float = 20.0,
    ) -> Iterator[subprocess.Popen[str]]:
        """A process of this user on a machine that has begun to connect. Its next line is "in" or
        "out"."""
        machine = self.names[number - 1] if number else self.inner
        arguments = (CONNECT, own[0], str(own[1]), other[0], str(other[1]), str(patience_s))
        argv = ["ip", "netns", "exec", machine, *as_user(uid), "-c", *arguments]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "begins\n"
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def serving(self, uid: int, backlog: int = 128) -> Iterator[None]:
        """A server of this user at the port on the launcher."""
        argv = ["ip", "netns", "exec", self.names[0], *as_user(uid), "-c", SERVE, str(backlog)]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            server.kill()
            server.communicate()

    def apply(self, number: int, text: str) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self.names[number - 1], NFT, "-f", "-"],
            input=text,
            check=True,
            text=True,
        )

    def tables(self, number: int) -> str:
        return run("ip", "netns", "exec", self.names[number - 1], NFT, "list", "tables")

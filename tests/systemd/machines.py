"""Several machines with a systemd and an address of their own, on a network of their own.

They have only what a fresh Debian has, and keep their files over a reboot.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.systemd.container import WHOLE, Container, cgroups, debian, locked, wait_booted

_SUBNET: Final = "10.77.0"


def address(place: int) -> str:
    return f"{_SUBNET}.{place + 1}"


class Machine:
    """A machine that can be switched on and off. Its files are in `folder`."""

    def __init__(
        self, name: str, tree: Path, folder: Path, net: str, binds: Mapping[Path, str]
    ) -> None:
        self.name = name
        self._tree = tree
        self._folder = folder
        self._net = net
        self._binds = binds
        self._on: ExitStack | None = None
        self._container: Container | None = None
        for each in ("upper", "work", "root"):
            (folder / each).mkdir(parents=True)
        own = {"hostname": name, "hosts": f"127.0.0.1 localhost {name}", "machine-id": uuid4().hex}
        (folder / "upper" / "etc").mkdir()
        for file, text in own.items():
            (folder / "upper" / "etc" / file).write_text(f"{text}\n")

    @property
    def container(self) -> Container:
        assert self._container is not None, f"{self.name} is off"
        return self._container

    def sh(self, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell as root, in a home directory as after a login."""
        return self.container.run("sh", "-c", f"cd /root && {command}", check=check)

    def switch_on(self) -> None:
        """Boot."""
        with ExitStack() as stack:
            enter = stack.enter_context(cgroups(f"-{self.name}"))
            console = stack.enter_context((self._folder / "console").open("wb"))
            upper, work, root = (self._folder / each for each in ("upper", "work", "root"))
            overlay = f"lowerdir={self._tree},upperdir={upper},workdir={work}"
            # The mount is gone with its last process.
            mount = f'mount -t overlay -o {overlay} overlay {root} && exec "$@"'
            nspawn = [
                "systemd-nspawn",
                "--quiet",
                "--boot",
                f"--directory={root}",
                f"--machine={self.name}",
                f"--network-namespace-path=/run/netns/{self._net}",
                "--register=no",
                "--keep-unit",
                "--link-journal=no",
                "--resolv-conf=off",
                "--timezone=off",
                f"--hostname={self.name}",
                "--console=pipe",
                *(f"--bind-ro={path}:{place}" for path, place in self._binds.items()),
                "systemd.unit=multi-user.target",
            ]
            process = stack.enter_context(
                subprocess.Popen(
                    [*enter, "unshare", "--mount", "sh", "-c", mount, "sh", *nspawn],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                )
            )
            stack.callback(process.kill)
            self._container = wait_booted(process, self._folder / "console")
            self._on = stack.pop_all()

    def switch_off(self) -> None:
        """Take the power away, if it is on."""
        on, self._on, self._container = self._on, None, None
        if on is not None:
            on.close()


@contextmanager
def machines(
    folder: Path, names: Sequence[str], binds: Mapping[Path, str], alone: str
) -> Iterator[dict[str, Machine]]:
    """Booted machines, the first of which is at `address(0)` and so on. They see each other, except
    for `alone`, which sees only the first one. No machine sees anything else. Skips, with the
    reason, where there can be none.
    """
    with locked(), ExitStack() as stack:
        tree = debian(*WHOLE)
        stack.enter_context(_network(names, alone))
        found = {}
        for name in names:
            machine = Machine(name, tree, folder / name, _namespace(name), binds)
            stack.callback(machine.switch_off)
            machine.switch_on()
            found[name] = machine
        yield found


@contextmanager
def _network(names: Sequence[str], alone: str) -> Iterator[None]:
    """Namespaces with a bridge between them. All goes with the namespaces."""
    hub = _namespace("hub")
    with ExitStack() as stack:
        for each in (hub, *map(_namespace, names)):
            _ip("netns", "add", each)
            stack.callback(_ip, "netns", "delete", each)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for place, name in enumerate(names):
            own, port = _namespace(name), f"port{place}"
            peer = ("type", "veth", "peer", "name", "host0", "netns", own)
            _ip("-n", hub, "link", "add", port, *peer)
            _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
            length = 32 if name == alone else 24
            _ip("-n", own, "address", "add", f"{address(place)}/{length}", "dev", "host0")
            for link in ("lo", "host0"):
                _ip("-n", own, "link", "set", link, "up")
            if name == alone:
                _ip("-n", own, "route", "add", address(0), "dev", "host0")
            else:
                # A gateway that is not there: as a machine that has one, without an internet.
                _ip("-n", own, "route", "add", "default", "via", f"{_SUBNET}.254")
        yield


def _namespace(name: str) -> str:
    return f"muster-booted-{os.getpid()}-{name}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=300)

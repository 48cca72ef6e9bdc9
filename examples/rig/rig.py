"""Machines in network namespaces on a private bridge, for tests that loopback does not allow.

    with Rig(tmp_path / "rig") as rig:
        a, b = rig.add("node-1"), rig.add("node-2")
        a.exec("ping", "-c1", b.address)
        b.power_off()

Needs root, util-linux, iproute2 and, for a cluster on it, openssl. Nothing is created in the
network namespace of the caller, and nothing is left when the rig ends or is killed: see
supervisor.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from agent.shim.system.cgroup import own_cgroup
from examples.rig import supervisor
from examples.rig.machine import NETWORK, Machine, RigError, network_of, run

TOOLS = ("ip", "mount", "nsenter", "openssl", "setpriv", "tc", "umount", "unshare")
USER = 1
FIRST_NODE = 11


def missing() -> str:
    """Return why a rig is impossible here, as a sentence; "" if it is possible."""
    if os.geteuid() != 0:
        return "machines in namespaces need the superuser: run this as root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing: install iproute2, util-linux and openssl"
    probe = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], check=False)
    return "" if probe.returncode == 0 else "this machine does not let root make namespaces"


class Rig:
    """A bridge with machines on it. The caller has the address `user`.

    `root` holds the disks of the machines; the directory `remove` is removed with the rig.
    """

    user = f"{NETWORK}.{USER}"

    def __init__(self, root: Path, *, remove: Path | None = None) -> None:
        """Raises RigError."""
        self.root = root
        self.machines: dict[str, Machine] = {}
        self._numbers = itertools.count(FIRST_NODE)
        self._cgroup = _make_cgroup(root)
        root.mkdir(parents=True, exist_ok=True)
        log = root / "rig.log"
        with log.open("ab") as out:
            self._supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", supervisor.__file__),
                    str(self._cgroup or ""),
                    str(remove or ""),
                ],
                env={**os.environ, "MUSTER_RIG": str(root)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as said:
            pid = said.readline().decode().strip()
        if not pid.isdecimal():
            raise RigError(f"the rig's own namespaces could not be made: {log.read_text()}")
        self.hub = int(pid)
        self._in_hub("ip", "link", "add", "bridge", "type", "bridge")
        self._in_hub("ip", "address", "add", f"{self.user}/24", "dev", "bridge")
        self._in_hub("ip", "link", "set", "bridge", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def supervisor_pid(self) -> int:
        """The process that removes the rig on SIGTERM."""
        return self._supervisor.pid

    def add(self, name: str, *, number: int | None = None, port_range: str = "") -> Machine:
        """Return a new machine that is on. `port_range` is its ip_local_port_range, "32768
        60999".
        """
        machine = Machine(
            name,
            next(self._numbers) if number is None else number,
            self.hub,
            self.root / name,
            None if self._cgroup is None else self._cgroup / name,
            port_range,
        )
        machine.install()
        machine.boot()
        self.machines[name] = machine
        return machine

    def enter(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` here, but on the rig's network."""
        return ["nsenter", "--target", str(self.hub), "--net", "--", *argv]

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Sockets created in this context by this thread are on the rig's network."""
        with network_of(self.hub):
            yield

    def stop(self) -> None:
        """Remove everything except the contents of `root` before returning."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        self._supervisor.wait()
        for machine in self.machines.values():
            machine.forget()

    def keep(self) -> None:
        """Let the rig outlive this process, until its supervisor receives SIGTERM."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(b"keep\n")
        self._supervisor.stdin.flush()

    def _in_hub(self, *argv: str) -> None:
        run(self.enter(*argv), "for the rig")


def cgroup_name(root: Path) -> str:
    """Return the name of the rig's cgroup, unique by its directory."""
    return f"muster-rig-{hashlib.sha256(bytes(root.resolve())).hexdigest()[:12]}"


def _make_cgroup(root: Path) -> Path | None:
    """Create a cgroup for the machines; None without a writable cgroup v2."""
    own = own_cgroup()
    if own is None:
        return None
    made = Path(own, cgroup_name(root))
    try:
        made.mkdir(exist_ok=True)
    except OSError:
        return None
    return made

"""A simulated machine of the rig, and control of its power."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.rig.supervisor import INIT, INTERPRETER, child_of, remove_cgroups

NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
EXEC_S = 60.0
START_S = 60.0
NETWORK = "10.77.0"
# No interface has it, so frames for it are lost silently.
NOWHERE = "02:00:00:00:00:01"
DISK = "/etc"


class RigError(Exception):
    """A part of the rig failed. The message names it and its output."""


@dataclass
class Machine:
    """A machine with its own network, mount, UTS, IPC, PID and cgroup namespaces, and its own /etc,
    /run, /sys and /proc.

    The rest of the file system is the host's, like a shared one. `number` determines its address.
    `hub` is process 1 of the rig's network. Raises RigError throughout.
    """

    name: str
    number: int
    hub: int
    folder: Path
    cgroup: Path | None = None
    port_range: str = ""
    pid: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _outbound: bool = True
    _inbound: bool = True
    _rate: str | None = None
    _loses: bool = False
    _foreign: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    # --- power ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Create its disk: a copy of /etc with its own names and ids."""
        self.folder.mkdir(parents=True, mode=0o700)
        shutil.copytree(DISK, self.disk(DISK), symlinks=True, ignore=_special_files)
        self.write("/etc/hostname", f"{self.name}\n")
        self.write("/etc/machine-id", f"{uuid.uuid4().hex}\n")
        self.write(
            "/etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n{self.address} {self.name}\n"
        )
        # No server answers there, so a name that is not in /etc/hosts is unknown at once.
        self.write("/etc/resolv.conf", "nameserver 127.0.0.1\n")

    def boot(self) -> None:
        """Switch it on: a new boot id, the same disk, an empty /run, nothing running."""
        if self.pid is not None:
            raise RigError(f"{self.name} is on")
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        unshare = ["unshare", *NAMESPACES, "--mount-proc", "--fork", "--kill-child"]
        init = [*INTERPRETER, str(INIT), self.name, str(self.folder), self.port_range]
        argv = ["nsenter", "--target", str(self.hub), "--pid", "--", *unshare, *init]
        log = self.folder / "boot.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self._in_cgroup([*argv, "cgroups" if self._fresh_cgroup() else ""]),
                env={**os.environ, "MUSTER_RIG": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            if said.readline() != b"ready\n":
                self._process.wait()
                raise RigError(f"{self.name} did not boot: {log.read_text().strip()}")
        self.pid = child_of(child_of(self._process.pid) or 0)
        if self.pid is None:
            raise RigError(f"{self.name} died as it booted")
        self._plug_in()

    def power_off(self) -> None:
        """Pull the plug: every process is dead on return, and no peer is notified."""
        if self.pid is None or self._process is None:
            raise RigError(f"{self.name} is off")
        os.kill(self.pid, signal.SIGKILL)
        self.forget()
        # The kernel removes the pair later, but a booting machine needs the name.
        with contextlib.suppress(RigError):
            self._in_hub("ip", "link", "delete", self._port)

    def forget(self) -> None:
        """It has died, or is about to."""
        if self._process is not None:
            self._process.wait()
        self.pid, self._process = None, None
        self._loses = False

    # --- inside -----------------------------------------------------------------------------------

    def enter(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` there as root."""
        return self._in_cgroup(["nsenter", "--target", str(self._on), *NAMESPACES, "--", *argv])

    def exec(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there and return its output."""
        return run(self.enter(*argv), f"on {self.name}", check=check)

    def disk(self, path: str) -> Path:
        """Return the host's path of a file on its disk, whether the machine is on or off."""
        return self.folder / path.lstrip("/") if path.startswith(DISK) else Path(path)

    def read(self, path: str) -> str:
        return self.disk(path).read_text()

    def write(self, path: str, text: str) -> None:
        """Replace a file on its disk, in place if it exists."""
        target = self.disk(path)
        if target.is_symlink():
            target.unlink()
        target.write_text(text)

    def hosts(self) -> str:
        """Its /etc/hosts."""
        return self.read("/etc/hosts")

    # --- network ----------------------------------------------------------------------------------

    def cut(self, *, outbound: bool = True, inbound: bool = True) -> None:
        """Drop the packets that it sends, receives, or both. Its link stays up, without any
        notification.
        """
        self._outbound, self._inbound = not outbound, not inbound
        self._shape()

    def cut_from(self, other: Machine) -> None:
        """Drop the packets that it sends to `other`. Those from `other` still arrive."""
        argv = ("ip", "neigh", "replace", other.address, "lladdr", NOWHERE, "dev", "eth0")
        self._on_its_network(*argv, "nud", "permanent")

    def slow(self, rate: str | None) -> None:
        """Limit the rate (in tc's notation, "10mbit") in each direction; None removes the limit."""
        self._rate = rate
        self._shape()

    def lose(self, share: float) -> None:
        """Drop this share of the received packets at random. Needs nft.

        Its sent packets are dropped by the peers, because a kernel that drops its own packet
        reports this to the sender.
        """
        some = f"numgen random mod 10000 < {share * 10000:.0f} " if share < 1 else ""
        chain = f"chain input {{ type filter hook input priority 0; {some}drop; }}"
        lines = ["table inet loss {", chain, "}"] if share else []
        # The first line creates a missing table, so that the second can delete it.
        lines = ["table inet loss {}", "delete table inet loss", *lines]
        self._on_its_network("nft", "\n".join(lines))
        self._loses = share > 0

    def mend(self) -> None:
        """End every cut and loss; a rate limit stays."""
        self._outbound = self._inbound = True
        self._shape()
        if self._loses:
            self.lose(0)
        self._on_its_network("ip", "neigh", "flush", "nud", "permanent")

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Sockets created in this context by this thread are on this machine."""
        with network_of(self._on):
            yield

    @property
    def _port(self) -> str:
        return f"port{self.number}"

    @property
    def _on(self) -> int:
        if self.pid is None:
            raise RigError(f"{self.name} is off")
        return self.pid

    def _plug_in(self) -> None:
        # A card keeps its address across boots; otherwise peers would use the old one for a minute.
        card = f"02:00:00:00:00:{self.number:02x}"
        pair = ("type", "veth", "peer", "name", "eth0", "address", card, "netns", str(self._on))
        self._in_hub("ip", "link", "add", self._port, *pair)
        self._in_hub("ip", "link", "set", self._port, "master", "bridge", "up")
        self._on_its_network("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._on_its_network("ip", "link", "set", "eth0", "up")
        self._shape()

    def _shape(self) -> None:
        self._in_hub(*_qdisc(self._port, passes=self._inbound, rate=self._rate))
        self._on_its_network(*_qdisc("eth0", passes=self._outbound, rate=self._rate))

    def _on_its_network(self, *argv: str) -> None:
        run(["nsenter", "--target", str(self._on), "--net", "--", *argv], f"on {self.name}")

    def _in_hub(self, *argv: str) -> None:
        run(["nsenter", "--target", str(self.hub), "--net", "--", *argv], f"for {self.name}")

    # --- cgroup -----------------------------------------------------------------------------------

    def _fresh_cgroup(self) -> bool:
        """Remove what an earlier boot left, like a real boot."""
        if self.cgroup is None:
            return False
        remove_cgroups(self.cgroup)
        self.cgroup.mkdir()
        return True

    def _in_cgroup(self, argv: list[str]) -> list[str]:
        """Return the command that runs `argv` in the machine's cgroup: entering the namespace does
        not move it there.
        """
        if self.cgroup is None:
            return argv
        script = 'echo 0 > "$0" && exec "$@"'
        return ["sh", "-c", script, str(self.cgroup / "cgroup.procs"), *argv]


def _qdisc(device: str, *, passes: bool, rate: str | None) -> tuple[str, ...]:
    """No nftables: these qdiscs are in every kernel with veth, and need no extra tool."""
    replace = ("tc", "qdisc", "replace", "dev", device, "root")
    if not passes:
        return (*replace, "blackhole")
    if rate is not None:
        return (*replace, "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
    return (*replace, "noqueue")


def _special_files(folder: str, names: list[str]) -> set[str]:
    """Return sockets and pipes, which cannot be copied."""
    paths = ((name, Path(folder, name)) for name in names)
    return {n for n, p in paths if not (p.is_symlink() or p.is_file() or p.is_dir())}


def run(argv: list[str], where: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output. Raises RigError."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=EXEC_S,
        start_new_session=True,
    )
    if check and done.returncode != 0:
        command = " ".join(argv[argv.index("--") + 1 :] if "--" in argv else argv)
        raise RigError(f"{command} {where}: exit {done.returncode}: {done.stderr.strip()}")
    return done


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Sockets created in this context by this thread are on the network of process `pid`."""
    with open("/proc/thread-self/ns/net") as here, open(f"/proc/{pid}/ns/net") as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(here.fileno())


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, 0) != 0:
        number = ctypes.get_errno()
        raise RigError(f"a network cannot be entered: {os.strerror(number)}")


def pid_inside(process: subprocess.Popen[bytes]) -> int:
    """Return the process that `Machine.enter` started, in this PID namespace. Raises RigError."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        pid = child_of(process.pid)
        if pid is not None:
            return pid
        time.sleep(0.001)
    raise RigError(f"process {process.pid} has ended, or runs nothing")

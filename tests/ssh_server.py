"""An ssh server on loopback, and an account of this machine with a home of the test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SSHD: Final = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
MISSING: Final = "" if SSHD and shutil.which("ssh") else "needs sshd (package openssh-server)"

# The real accounts stay as they are: what runs within sees these files in their place.
_WITHIN: Final = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-ec",
    'mount --bind "$1/passwd" /etc/passwd; mount --bind "$1/shadow" /etc/shadow; shift; exec "$@"',
    "sh",
)
_SERVE: Final = 'mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd; exec "$@"'
_PASSWD: Final = """\
root:x:0:0::{home}:/bin/sh
sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin
nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin
"""
_CONFIG: Final = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {root}/host_key
AuthorizedKeysFile {root}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PidFile none
"""


class SshServer:
    """Root may log in with `key`; `home` is root's for what runs `within`. Needs root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.key = root / "key"
        self.log = root / "log"
        self.ssh.mkdir(parents=True, mode=0o700)
        (root / "passwd").write_text(_PASSWD.format(home=self.home))
        (root / "shadow").write_text("root:*:20000::::::\nsshd:*:20000::::::\n")
        for name in ("key", "host_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)]
            subprocess.run(make, check=True)
        shutil.copy(root / "key.pub", root / "authorized_keys")
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ssh(self) -> Path:
        """The folder of root's configuration for ssh."""
        return self.home / ".ssh"

    @property
    def url(self) -> str:
        """The address of the machine's root directory."""
        return f"ssh://root@127.0.0.1:{self.port}"

    def within(self) -> list[str]:
        """Return what precedes a command that finds root's home here."""
        return [*_WITHIN, str(self.root)]

    def know(self, *, known: bool = True) -> None:
        """Let root's ssh know the key of the host, or forget it."""
        key = (self.root / "host_key.pub").read_text() if known else ""
        (self.ssh / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}" if key else "")

    def start(self) -> None:
        """Start it on a free port; returns when it answers."""
        while not self._answers():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            self._serve()

    def stop(self) -> None:
        """End it, with its connections."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _serve(self) -> None:
        assert SSHD is not None
        (self.root / "config").write_text(_CONFIG.format(root=self.root, port=self.port))
        serve = ["sh", "-ec", _SERVE, "sh", SSHD, "-D", "-e", "-f", str(self.root / "config")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([*self.within(), *serve], stderr=log)

    def _answers(self) -> bool:
        """Wait until it listens. Returns False if it has ended: the port was taken meanwhile."""
        while self._process is not None:
            if self._process.poll() is not None:
                text = self.log.read_text()
                assert "already in use" in text, text
                return False
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=300) as made:
                    return made.recv(4) == b"SSH-"
            except ConnectionRefusedError:
                time.sleep(0.01)
        return False


@contextmanager
def ssh_server() -> Iterator[SshServer]:
    """A server for the time of a test, in a folder with a short path."""
    with tempfile.TemporaryDirectory() as folder:
        server = SshServer(Path(folder))
        try:
            server.start()
            server.know()
            yield server
        finally:
            server.stop()

"""Notify systemd of a daemon's state (the protocol of sd_notify(3)): a datagram of KEY=VALUE lines.

Our own code, because the protocol is stable and this is small. The libraries for it are dormant or
need C. Outside systemd, where NOTIFY_SOCKET is not set, every call does nothing.
"""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends to the service manager named by the environment, if there is one.

    `watchdog_s` is the interval for `watchdog()`: half of `WatchdogSec=`, as sd_watchdog_enabled(3)
    advises. It is None if no watchdog waits for this process.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, *, pid: int | None = None) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is in the abstract namespace, whose real first byte is NUL.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_s = _watchdog_s(environ, os.getpid() if pid is None else pid)

    def ready(self, status: str) -> None:
        """Report that start-up is complete, so that units that wait for this one may start."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={_one_line(text)}")

    def stopping(self) -> None:
        """Report that shutdown has begun."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Report that the daemon's loop still turns. Call it from that loop and not
        from a thread.
        """
        self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                # A full queue must never block the daemon.
                sock.setblocking(False)
                sock.sendto(state.encode(), self._address)
        except OSError:
            # Nobody listens any more. A daemon must not fail because it could not report.
            return


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isdecimal() or int(usec) == 0:
        return None
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(usec) / 2e6


def _one_line(text: str) -> str:
    return " ".join(text.split())

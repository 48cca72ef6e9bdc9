"""Find out from the kernel's tables if a TCP port of this network namespace has a listener."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.shim.system.credentials import Credentials
from agent.shim.system.event_loop import Loop, now

POLL_S = 0.003
WATCH_S = 600.0
LISTEN = b"0A"
TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def listening(port: int, uid: int | None = None) -> bool:
    """True if a socket in LISTEN has this port, under IPv4 or IPv6, and is of this user or root
    (None: of anybody)."""
    owners = None if uid is None else (b"0", b"%d" % uid)
    wanted = b":%04X" % port
    for table in TABLES:
        try:
            with open(table, "rb") as file:
                content = file.read()
        except OSError:
            continue
        if wanted not in content:
            continue
        for line in content.splitlines()[1:]:
            fields = line.split(None, 8)
            if len(fields) <= 7 or fields[3] != LISTEN or not fields[1].endswith(wanted):
                continue
            if owners is None or fields[7] in owners:
                return True
    return False


def await_listener(
    loop: Loop, timer: str, port: int, user: Credentials, on_listening: Callable[[], None]
) -> None:
    """Call `on_listening` once the port has a listener, of this user if the job became another
    than the agent. Polls for ten minutes, or until the timer is cancelled.
    """
    uid = user.uid if user.become else None
    until = now() + WATCH_S

    def look() -> None:
        began = time.perf_counter()
        if listening(port, uid):
            on_listening()
            return
        # On a node with many connections the tables are long: never use a tenth of a core on this.
        pause = max(POLL_S, 10 * (time.perf_counter() - began))
        if now() < until:
            loop.at(timer, now() + pause, look)

    look()

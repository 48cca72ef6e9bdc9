"""Whether somebody listens on a TCP port of this network namespace, by the kernel's tables."""

from __future__ import annotations

LISTEN = b"0A"
TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def listening(port: int) -> bool:
    """True when a socket in LISTEN has this port, under IPv4 or IPv6."""
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
            fields = line.split(None, 4)
            if len(fields) > 3 and fields[3] == LISTEN and fields[1].endswith(wanted):
                return True
    return False

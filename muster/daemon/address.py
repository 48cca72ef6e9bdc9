"""Where a daemon listens and what it dials: is that this machine, or a network?"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or name, never leaves this machine.

    A name other than localhost is taken to be outside: what it resolves to may change.
    """
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

"""The coordinator's own certificate: the names in it, and its renewal with the same key."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from muster.cli.cluster.setup.written_cluster import WrittenCluster
from muster.cli.errors import RefusedError
from muster.cli.output.format import safe
from muster.daemon.clock import SystemClock
from muster.daemon.durable_files import write_atomic
from muster.daemon.listen_address import all_names

_PUBLIC = 0o644


class RenewedCertificate(NamedTuple):
    """A new certificate: its end in UTC seconds, and the names that the old one did not have."""

    expires: float
    added: tuple[str, ...]


def names_in(cert: Path) -> tuple[str, ...]:
    """Return the host names and addresses of a certificate; empty if it cannot be read."""
    from muster.daemon.certificates import certificate_hosts

    try:
        hosts, addresses = certificate_hosts(cert.read_bytes())
    except (OSError, ValueError):
        return ()
    return (*hosts, *addresses)


def renew_certificate(written: WrittenCluster, names: tuple[str, ...]) -> RenewedCertificate:
    """Sign the coordinator's certificate anew, for its old names, all names of the machine and
    these. Its key stays, so printed lines, nodes and people go on as before. A running coordinator
    reads the file by itself. Raises RefusedError.
    """
    from muster.daemon.certificates import (
        Authority,
        certificate_hosts,
        ends_at,
        server_certificate,
    )

    ca_key, key = written.path("tls", "ca_key"), written.path("tls", "key")
    try:
        authority = Authority(written.ca.read_bytes(), ca_key.read_bytes())
        old = certificate_hosts(written.cert.read_bytes())
        hosts, addresses = all_names(names)
        hosts = list(dict.fromkeys([*old[0], *hosts]))
        addresses = list(dict.fromkeys([*old[1], *addresses]))
        now = SystemClock().now().wall
        made = server_certificate(authority, key.read_bytes(), hosts, addresses, now)
        write_atomic(written.cert, made, _PUBLIC)
    except (OSError, ValueError) as error:
        raise RefusedError(f"the certificate was not renewed: {safe(str(error))}") from error
    known = {*old[0], *old[1]}
    added = tuple(name for name in (*hosts, *addresses) if name not in known)
    return RenewedCertificate(ends_at(made), added)

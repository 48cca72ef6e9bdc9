"""The ends of certificates that a node's doctor names."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.probe.certificate_ends import certificate_ends
from muster.daemon.certificates import CA_DAYS, new_authority, new_key, server_certificate
from muster.daemon.clock import SystemClock
from muster.daemon.tls import server_context

DAY_S = 86400.0


@contextlib.contextmanager
def coordinator(folder: Path, days_left: float) -> Iterator[tuple[int, Path]]:
    """A listener with a certificate and a CA that end, at a port."""
    began = SystemClock().now().wall - (CA_DAYS - days_left) * DAY_S
    authority, key = new_authority(began), new_key()
    files = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]
    cert = server_certificate(authority, key, ["localhost"], [], began)
    for path, data in zip(files, (cert, key, authority.cert), strict=True):
        path.write_bytes(data)
    context = server_context(files[0], files[1])

    def answer(listener: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            raw, _ = listener.accept()
            with raw, context.wrap_socket(raw, server_side=True) as connection:
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1], files[2]
        finally:
            # A listener that nobody has asked waits in accept().
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(("days_left", "verb"), [(20, " ends at "), (-1, " ended at ")])
def test_the_coordinators_certificate_and_the_ca_are_named(
    tmp_path: Path, days_left: float, verb: str
) -> None:
    with coordinator(tmp_path, days_left) as (port, ca):
        config = AgentConfig(coordinator=f"https://127.0.0.1:{port}", tls_ca=ca)
        (of_ca, _), (served, fix) = certificate_ends(config)
    assert of_ca.startswith(f"the CA in {ca}{verb}")
    assert served.startswith(f"the certificate of https://127.0.0.1:{port}{verb}")
    assert "muster up --renew-certificate" in fix


def test_certificates_that_are_good_for_long_are_not_named(tmp_path: Path) -> None:
    with coordinator(tmp_path, 300) as (port, ca):
        config = AgentConfig(coordinator=f"https://127.0.0.1:{port}", tls_ca=ca)
        assert certificate_ends(config) == ()


def test_a_coordinator_that_does_not_answer_is_left_to_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    config = AgentConfig(coordinator=f"https://127.0.0.1:{port}", tls_ca=tmp_path / "none")
    assert certificate_ends(config) == ()

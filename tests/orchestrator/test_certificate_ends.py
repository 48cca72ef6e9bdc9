"""The coordinator's own certificate and its CA: a warning before they end."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

from muster.daemon.certificates import CA_DAYS, new_authority, new_key, server_certificate
from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.core.model.people import Enrolment, Joined, NodeKey
from orchestrator.core.nodes.enrolment import end_warnings

DAY_S = 86400.0
MADE = 1_700_000_000.0


class StoppedClock:
    """A clock of which only the wall time matters."""

    def __init__(self, wall: float = 0.0) -> None:
        self._now = Instant(0.0, wall)

    def now(self) -> Instant:
        return self._now


def test_a_certificate_within_thirty_days_of_its_end_is_named(tmp_path: Path) -> None:
    authority = new_authority(MADE)
    later = server_certificate(authority, new_key(), ["head"], [], MADE + DAY_S)
    files = {"tls.cert": tmp_path / "cert.pem", "tls.ca": tmp_path / "ca.pem"}
    files["tls.cert"].write_bytes(later)
    files["tls.ca"].write_bytes(authority.cert)
    ends = MADE + CA_DAYS * DAY_S

    def warnings(at: float) -> tuple[str, ...]:
        certificates = CertificateEnds(files, StoppedClock(at))
        certificates.read()
        assert certificates.ends["tls.ca"] == ends
        return certificates.warnings()

    assert warnings(ends - 30.5 * DAY_S) == ()
    (why,) = warnings(ends - 29.5 * DAY_S)
    assert why.startswith(f"the coordinator's tls.ca, {files['tls.ca']}, ends at ")
    assert len(warnings(ends - 28.5 * DAY_S)) == 2
    assert " ended at " in warnings(ends + 1)[-1]


def test_certificates_of_nodes_that_end_soon_are_logged_and_the_lines_are_few() -> None:
    known = Enrolment()
    for number in range(30):
        made = NodeKey(f"f{number}", "k", MADE + 90 * DAY_S, begins=MADE)
        known.put(NodeName(f"gpu-{number}"), Joined(current=made))

    def said(day: float) -> list[str]:
        clock = StoppedClock(MADE + day * DAY_S)
        with capture_logs() as logs:
            CertificateEnds({}, clock, partial(end_warnings, known)).log()
        assert all(line["log_level"] == "warning" for line in logs)
        return [line["why"] for line in logs]

    assert said(60.5) == []
    late = said(61.5)
    assert late[0].startswith("gpu-0: its certificate ends at ")
    assert "certificate_not_renewed" in late[0]
    assert late[20:] == ["those of 10 more nodes end: muster nodes"]


async def test_files_are_read_and_warnings_logged_at_once(tmp_path: Path) -> None:
    authority = new_authority(MADE)
    file, looked = tmp_path / "ca.pem", asyncio.Event()
    file.write_bytes(authority.cert)
    clock = StoppedClock(MADE + (CA_DAYS - 20) * DAY_S)

    def of_nodes(_now: float) -> list[str]:
        looked.set()
        return ["gpu-1: its certificate ends"]

    certificates = CertificateEnds({"tls.ca": file}, clock, of_nodes)
    with capture_logs() as logs:
        watching = asyncio.create_task(certificates.watch())
        await looked.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert certificates.ends == {"tls.ca": MADE + CA_DAYS * DAY_S}
    said = [line["why"] for line in logs if line["event"] == "certificate_ends"]
    assert said[0].startswith(f"the coordinator's tls.ca, {file}, ends at ")
    assert said[1:] == ["gpu-1: its certificate ends"]


def test_a_file_that_is_no_certificate_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    files = {"tls.cert": tmp_path / "x", "tls.ca": tmp_path / "none"}
    certificates = CertificateEnds(files, StoppedClock())
    certificates.read()
    assert (certificates.ends, certificates.warnings()) == ({}, ())

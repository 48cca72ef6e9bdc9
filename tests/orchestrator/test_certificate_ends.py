"""The coordinator's own certificate and its CA: a warning before they end."""

from __future__ import annotations

from pathlib import Path

from muster.daemon.certificates import CA_DAYS, new_authority, new_key, server_certificate
from orchestrator.certificate_ends import ending

DAY_S = 86400.0
MADE = 1_700_000_000.0


def test_a_certificate_within_thirty_days_of_its_end_is_named(tmp_path: Path) -> None:
    authority = new_authority(MADE)
    later = server_certificate(authority, new_key(), ["head"], [], MADE + DAY_S)
    files = {"tls.cert": tmp_path / "cert.pem", "tls.ca": tmp_path / "ca.pem"}
    files["tls.cert"].write_bytes(later)
    files["tls.ca"].write_bytes(authority.cert)
    ends = MADE + CA_DAYS * DAY_S
    assert ending(files, ends - 31 * DAY_S) == []
    (why,) = ending(files, ends - 29.5 * DAY_S)
    assert why.startswith(f"tls.ca {files['tls.ca']} ends at ")
    assert len(ending(files, ends - 28 * DAY_S)) == 2
    assert " ended at " in ending(files, ends + 1)[-1]


def test_a_file_that_is_no_certificate_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    assert ending({"tls.cert": tmp_path / "x", "tls.ca": tmp_path / "none"}, 0.0) == []

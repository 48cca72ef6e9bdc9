"""Wheels that the coordinator cannot offer, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from muster.daemon.certificates import new_authority, new_key, server_certificate
from muster.wheels.manifest import MANIFEST
from orchestrator.enrolment import EnrolmentSettings

NOW = 1.8e9


def test_an_unreadable_manifest_is_logged_once_a_change(tmp_path: Path) -> None:
    authority = new_authority(NOW)
    cert = tmp_path / "server.pem"
    cert.write_bytes(server_certificate(authority, new_key(), ["head"], [], NOW))
    settings = EnrolmentSettings(authority, 1, 60.0, address="head:1", cert=cert, wheels=tmp_path)
    manifest = tmp_path / MANIFEST
    good = '{"requirements": "%s", "targets": {}}' % ("0" * 64)

    def logged(text: str) -> list[Any]:
        manifest.write_text(text)
        with capture_logs() as logs:
            for _ in range(3):
                settings.read_wheels()
        return [each["event"] for each in logs]

    assert logged("{") == ["wheels_unreadable"]
    assert logged("{") == []
    assert logged("[]") == ["wheels_unreadable"]
    assert logged(good) == []
    assert logged("[]") == ["wheels_unreadable"]

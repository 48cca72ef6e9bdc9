"""TLS as the client sees it: trusted, not trusted, and not spoken at all."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from muster.client import SettingsError, UnreachableError
from tests.client.both import MakeClient, make
from tests.client.fake_coordinator import TOKEN, Script, job_view, running

__all__ = ["make"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_a_ca_of_ones_own_is_trusted(
    make: MakeClient, tmp_path: Path, authority: trustme.CA
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with running(Script(jobs={42: job_view()}), server_side(authority)) as fake:
        assert make(fake.url, TOKEN, ca).job(42).id == 42
        assert isinstance(list(make(fake.url, TOKEN, ca).logs(42)), list)


def test_an_unknown_ca_is_refused_at_once_and_the_token_stays_here(
    make: MakeClient, authority: trustme.CA
) -> None:
    with running(Script(), server_side(authority)) as fake:
        with pytest.raises(UnreachableError, match="not trusted") as caught:
            make(fake.url, TOKEN).nodes()
        assert "MUSTER_CA" in caught.value.hint
        assert not fake.script.requests


def test_a_certificate_of_another_host_is_refused(
    make: MakeClient, tmp_path: Path, authority: trustme.CA
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with (
        running(Script(), server_side(authority, "elsewhere.test")) as fake,
        pytest.raises(UnreachableError, match="not trusted") as caught,
    ):
        make(fake.url, TOKEN, ca).nodes()
    assert "subjectAltName" in caught.value.hint
    assert "CA" not in caught.value.hint


def test_a_certificate_that_has_expired_is_no_matter_of_its_ca(
    make: MakeClient, tmp_path: Path, authority: trustme.CA
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    authority.issue_cert("127.0.0.1", not_after=yesterday).configure_cert(context)
    with (
        running(Script(), context) as fake,
        pytest.raises(UnreachableError, match="expired") as caught,
    ):
        make(fake.url, TOKEN, ca).nodes()
    assert "clock" in caught.value.hint
    assert "CA" not in caught.value.hint


def test_a_server_without_tls_is_named(make: MakeClient) -> None:
    with running() as fake, pytest.raises(UnreachableError, match="has an incompatible TLS"):
        make(fake.url.replace("http:", "https:"), TOKEN).nodes()


def test_a_ca_file_that_is_none_is_refused(make: MakeClient, tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(SettingsError, match="cannot be used"):
            make("https://127.0.0.1:1", TOKEN, path)

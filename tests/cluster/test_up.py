"""The first `muster up` on a machine."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from examples.local_cluster import MUSTER
from muster.daemon.units import make_readable
from tests.cluster.enrolment import Site


def test_up_writes_a_whole_cluster_and_changes_nothing_when_it_runs_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = site.up()
    assert f"muster join 127.0.0.1:{site.port} --run-as SUBMITTER" in first
    assert "muster user add" in first
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    private = {path.name for path in files if path.stat().st_mode & 0o777 == 0o600}
    assert private == {"ca-key.pem", "server-key.pem", "tokens.yaml", "client.yaml"}
    config = yaml.safe_load((tmp_path / "etc/coordinator.yaml").read_text())
    assert config["pools"] == {"default": {"defaults": {"time_limit": "1d"}}}
    site.muster("coordinator", "--config", "etc/coordinator.yaml", "--check")

    assert site.up() == first
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files} == before
    assert "muster_" not in first


def test_up_needs_no_other_program(tmp_path: Path) -> None:
    """A small system has no `ip`. The certificate is for the addresses of the machine all the
    same."""
    site = Site(tmp_path)
    site.up({"PATH": "/nowhere"})
    certificate = x509.load_pem_x509_certificate((tmp_path / "etc" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert "127.0.0.1" in found
    # Without a route there is no other.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        assert probe.getsockname()[0] in found


def test_up_and_join_ask_for_the_user_of_the_jobs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert "--run-as" in site.muster("up", "--dir", "etc", "--no-start", code=2).stderr
    assert not (tmp_path / "etc").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the text is for root")
def test_up_says_who_is_the_first_admin_and_as_whom_jobs_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    words = ("--dir", "etc", "--name", "127.0.0.1", "--no-start", "--no-wheels")
    said = site.muster("up", *words, "--run-as", "trainer", "--user", "ada").stderr
    said = " ".join(said.split())
    assert f"ada is the first admin, with the token in {tmp_path}/client.yaml" in said
    # Not by PATH: sudo may have one without /usr/local/bin.
    assert f"sudo {MUSTER} nodes" in said
    assert f"sudo {MUSTER} token create --user ada" in said
    assert "useradd --create-home trainer" in said
    assert "single_team: true" in said


def test_an_installation_can_be_opened_for_all(tmp_path: Path) -> None:
    venv, out = tmp_path / "venv", tmp_path / "out"
    (venv / "bin").mkdir(parents=True)
    out.write_text("")
    (venv / "bin" / "muster").write_text("")
    (venv / "pyvenv.cfg").write_text("")
    (venv / "link").symlink_to(out)
    for path, mode in (
        (out, 0o600),
        (venv / "bin" / "muster", 0o700),
        (venv / "pyvenv.cfg", 0o600),
    ):
        path.chmod(mode)
    for path in (venv / "bin", venv):
        path.chmod(0o700)
    assert make_readable(venv)
    assert not make_readable(venv)
    modes = [path.stat().st_mode & 0o777 for path in (venv, venv / "bin", venv / "bin" / "muster")]
    assert modes == [0o755, 0o755, 0o755]
    assert (venv / "pyvenv.cfg").stat().st_mode & 0o777 == 0o644
    assert out.stat().st_mode & 0o777 == 0o600

"""`muster up` with options: the lines it prints, other options later, a renewed certificate."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import yaml

from muster.client import load_settings
from muster.daemon.certificates import certificate_hosts, ends_at, public_key_pin
from tests.cluster.enrolment import Site
from tests.cluster.jobs import until


def said(text: str) -> str:
    return " ".join(text.split())


def up(site: Site, *options: str, code: int = 0) -> str:
    words = ("up", "--dir", "etc", "--no-start", "--no-wheels", *options)
    return said(site.muster(*words, code=code).stderr)


def end_of(site: Site) -> float:
    name = 'muster_certificate_end_seconds{certificate="tls.cert",name=""}'
    return next(float(line.split()[-1]) for line in site.metrics().split("\n") if name in line)


def test_the_interpreter_of_the_nodes_is_in_the_printed_lines(tmp_path: Path) -> None:
    site = Site(tmp_path, ("--python", "/opt/training"))
    try:
        line = f"muster join 127.0.0.1:{site.port} --run-as SUBMITTER --python /opt/training"
        assert line in site.up()
        site.serve()
        made = site.muster("token", "create", "--join").stdout.split()
        assert made[-4:] == ["--run-as", "SUBMITTER", "--python", "/opt/training"]
        # The arguments of the printed line.
        words = ("--node", "n", "--dir", "n", "--no-start", *made[4:])
        site.muster("join", made[2], *words, stdin=f"{made[3]}\n")
        node = yaml.safe_load((tmp_path / "n/agent.yaml").read_text())
        assert node["python"] == "/opt/training"
    finally:
        for daemon in site.daemons:
            daemon.stop()


def test_up_says_that_nodes_have_no_torch_without_an_interpreter(tmp_path: Path) -> None:
    text = up(Site(tmp_path), "--run-as", "trainer", "--name", "127.0.0.1")
    assert "no --python was given" in text
    assert f"in `join` of {tmp_path}/etc/coordinator.yaml" in text
    other = tmp_path / "other"
    other.mkdir()
    assert "absolute path" in up(Site(other), "--run-as", "a", "--python", "venv", code=2)


def test_lines_for_others_have_the_public_name_and_not_a_tunnel(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        site.up()
        site.serve()
        # The admin works through a tunnel, or on the coordinator's machine.
        client = tmp_path / "client.yaml"
        own = client.read_text().replace("https://127.0.0.1:", "https://localhost:")
        client.write_text(own)
        assert load_settings(site.env).url.startswith("https://localhost:")
        public = f"127.0.0.1:{site.port}"
        assert f"muster join {public} mj1." in site.muster("token", "create", "--join").stdout
        login = f"muster login https://{public} ml1."
        assert login in said(site.muster("token", "create", "--user", "ada").stderr)
        assert login in site.muster("user", "add", "ann", "--login").stdout
    finally:
        for daemon in site.daemons:
            daemon.stop()


def test_each_option_that_a_cluster_was_not_set_up_with_is_named(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.up()
    config = tmp_path / "etc/coordinator.yaml"
    before = config.read_bytes()
    # The same settings again: nothing to report.
    same = ("--run-as", "SUBMITTER", "--user", "ada", "--name", "127.0.0.1", "--time-limit", "24h")
    assert "kept" not in up(site, *same, "--port", str(site.port), "--pool", "default")
    text = up(
        site,
        *("--run-as", "trainer", "--python", "/opt/training", "--name", "head.example"),
        *("--pool", "lab", "--pool", "default", "--time-limit", "2h", "--user", "bob"),
        *("--approve", "--port", "1", "--agents-port", "2", "--listen", "0.0.0.0"),
    )
    for each in (
        f"--run-as: kept SUBMITTER, you gave trainer; change `join.run_as` in {config}",
        f"--python: kept none, you gave /opt/training; change `join.python` in {config}",
        f"--port: kept {site.port}, you gave 1; change `listen.port and join.address` in",
        f"--agents-port: kept {site.agents_port}, you gave 2; change `listen_agents.port` in",
        "--listen: kept 127.0.0.1, you gave 0.0.0.0; change `listen.host and listen_agents.host`",
        "--approve: kept false, you gave true; change `join.approve` in",
        "you gave head.example; to add to the certificate: muster up --renew-certificate --name",
        "--pool: kept default, you gave lab; change `pools` in",
        "--time-limit: kept 1d, you gave 2h; change `pools.*.defaults.time_limit` in",
        "--user: kept ada, you gave bob; muster user add bob --role admin --login",
    ):
        assert each in text, text
    assert config.read_bytes() == before


def test_a_renewed_certificate_has_the_same_key_and_is_served(tmp_path: Path) -> None:
    site = Site(tmp_path)
    cert = tmp_path / "etc/server.pem"

    def served() -> bytes:
        pem = ssl.get_server_certificate(("127.0.0.1", site.port))
        return hashlib.sha256(pem.strip().encode()).digest()

    def on_disk() -> bytes:
        return hashlib.sha256(cert.read_bytes().strip()).digest()

    try:
        site.up()
        site.serve()
        before, old = cert.read_bytes(), served()
        text = up(site, "--renew-certificate", "--name", "head.example")
        assert "now also for head.example" in text
        assert public_key_pin(cert.read_bytes()) == public_key_pin(before)
        assert ends_at(cert.read_bytes()) >= ends_at(before)
        hosts, addresses = certificate_hosts(cert.read_bytes())
        known = certificate_hosts(before)
        assert {*hosts} == {*known[0], "head.example"}
        assert {*addresses} >= {*known[1]}
        assert cert.stat().st_mode & 0o777 == 0o644
        until(lambda: served() == on_disk() != old, "the new certificate is served")
        end = ends_at(cert.read_bytes())
        until(lambda: end_of(site) == end, "its end is shown")
        assert site.links() == {}
    finally:
        for daemon in site.daemons:
            daemon.stop()


def test_nothing_is_renewed_where_there_is_no_cluster(tmp_path: Path) -> None:
    assert "nothing was renewed" in up(Site(tmp_path), "--renew-certificate", code=125)

"""Certificates of nodes: the listener that demands them, their renewal, and copies of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from agent.link.dialer import ConnectionLostError, Dialer
from agent.link.renewal import CertificateRenewal
from examples.local_cluster import Daemon
from muster.client import load_settings
from muster.daemon.clock import SystemClock
from muster.daemon.tls import client_context
from tests.cluster.enrolment import Site, running
from tests.cluster.jobs import until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_the_agents_port_is_for_certificates_and_agents_only(site: Site) -> None:
    site.join("gpu-04", site.secret())
    admin = load_settings(site.env).token
    context = client_context(site.root / "etc" / "ca.pem")
    connection = HTTPSConnection("127.0.0.1", site.agents_port, timeout=30, context=context)

    def ask() -> None:
        connection.request("GET", "/v1/nodes", headers={"Authorization": f"Bearer {admin}"})
        connection.getresponse().read()

    with contextlib.closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
        ask()
    status, problem = site.answer("/v1/jobs", {}, "gpu-04")
    assert (status, problem["detail"]) == (403, "a node's certificate is not a user's token")
    # A certificate is a node, whatever token comes with it.
    assert site.post("/v1/join/secrets", {}, "gpu-04", admin) == (403, "forbidden")


def test_the_users_port_has_nothing_for_agents(site: Site) -> None:
    """They have a listener of their own, which demands a certificate."""
    admin = load_settings(site.env).token
    for token in ("", admin, f"muster_join_{'0' * 8}_{'0' * 64}"):
        renew = site.post("/v1/agent/certificate", {"request": ""}, token=token)
        assert renew == (404, "no_such_route")
        peers = site.post("/v1/agent/tasks/1.1.n1/peers", {}, token=token)
        assert peers == (404, "no_such_route")


async def renew(site: Site, node: str, file: Path) -> str:
    """Renew a certificate of a node once; returns why not."""
    ca, url = site.root / "etc" / "ca.pem", f"https://127.0.0.1:{site.agents_port}"
    async with Dialer(url, None, ca, file) as dialer:
        renewal = CertificateRenewal(dialer, file, node, SystemClock())
        try:
            await renewal.step(file, at_once=True)
        except ConnectionLostError as error:
            return str(error)
    return ""


async def test_a_certificate_is_renewed_and_a_copy_of_the_old_one_ends_both(site: Site) -> None:
    await asyncio.to_thread(lambda: site.join("gpu-05", site.secret()))
    path = site.certificate("gpu-05")
    first = path.read_bytes()
    stolen = path.with_name("stolen.pem")
    stolen.write_bytes(first)
    assert await renew(site, "gpu-05", path) == ""
    assert path.read_bytes() != first
    assert "renewed twice" in await renew(site, "gpu-05", stolen)
    assert "no node has this certificate" in await renew(site, "gpu-05", path)


async def test_a_node_that_never_got_the_answer_of_its_join_renews(site: Site) -> None:
    secret, path = site.secret(), site.certificate("gpu-08")
    await asyncio.to_thread(site.join, "gpu-08", secret)
    first = path.read_bytes()
    await asyncio.to_thread(site.join, "gpu-08", secret)
    assert path.read_bytes() != first
    path.write_bytes(first)
    assert await renew(site, "gpu-08", path) == ""
    assert site.post("/v1/jobs", {}, "gpu-08")[0] == 403  # not 401: the certificate is good


@contextlib.contextmanager
def thief(site: Site, node: str) -> Iterator[Daemon]:
    """An agent that has a copy of a node's certificate and key, and has renewed it."""
    own = site.root / f"thief-of-{node}"
    (own / "agent").mkdir(parents=True)
    copy = own / "agent" / "node.pem"
    shutil.copy(site.certificate(node), copy)
    text = (site.root / node / "agent.yaml").read_text()
    (own / "agent.yaml").write_text(text.replace(f"/{node}/agent", f"/{own.name}/agent"))

    async def renew() -> None:
        ca, url = site.root / "etc" / "ca.pem", f"https://127.0.0.1:{site.agents_port}"
        async with Dialer(url, None, ca, copy) as dialer:
            await CertificateRenewal(dialer, copy, node, SystemClock()).step(copy, at_once=True)

    asyncio.run(renew())
    daemon = site.agent(own.name)
    try:
        yield daemon
    finally:
        daemon.stop()


def test_a_node_whose_copy_came_first_ends_both_at_once(site: Site) -> None:
    """The copy was renewed and connected while the node was away."""
    site.join("gpu-30", site.secret())
    agent = site.agent("gpu-30")
    until(lambda: site.links().get("gpu-30") == "connected", "the node is in the pool")
    agent.stop()
    until(lambda: site.links()["gpu-30"] != "connected", "the node is away")
    with thief(site, "gpu-30"):
        until(lambda: site.links()["gpu-30"] == "connected", "the copy has the name")
        site.agent("gpu-30")
        until(lambda: site.links()["gpu-30"] != "connected", "the copy is cut off")
        shown = " ".join(site.muster("node", "show", "gpu-30").stdout.split())
        assert "renewed twice, so a copy of its key is in use" in shown
        assert "revoked; to take it back: muster join, then muster node accept gpu-30" in shown
        assert "renewed twice" in " ".join(site.muster("nodes").stdout.split())
        assert 'muster_certificate_copied{name="gpu-30"} 1.0' in site.metrics()
        said = [
            line
            for line in map(json.loads, site.daemons[0].log.read_text().splitlines())
            if line["event"] == "NodeRevoked" and line["node"] == "gpu-30"
        ]
        assert [line["level"] for line in said] == ["warning"]
        assert "renewed twice" in said[0]["why"]
    # Neither comes back before an operator accepts the node, which makes a key of its own.
    again = site.join("gpu-30", site.secret()).stdout
    assert "this node has made a new key" in again
    assert "waits for" in again
    site.muster("node", "accept", "gpu-30")
    until(lambda: site.links()["gpu-30"] == "connected", "the node is back")
    assert 'muster_certificate_copied{name="gpu-30"}' not in site.metrics()

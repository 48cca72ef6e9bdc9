"""A running agent renews a certificate that is good for long, and the coordinator's own ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from muster.daemon.certificates import CA_DAYS, Authority, server_certificate
from muster.daemon.clock import SystemClock
from tests.cluster.enrolment import Site
from tests.cluster.jobs import until
from tests.cluster.test_wrong_clock import AHEAD, restart

DAY_S = 86400.0
BEHIND = {"PYTHONPATH": str(AHEAD), "MUSTER_TEST_AHEAD_S": str(-61 * 86400)}
NODE = "gpu-01"


def end_in_20_days(site: Site) -> None:
    """Replace the coordinator's certificate by one that ends soon."""
    etc = site.root / "etc"
    authority = Authority((etc / "ca.pem").read_bytes(), (etc / "ca-key.pem").read_bytes())
    began = SystemClock().now().wall - (CA_DAYS - 20) * DAY_S
    key = (etc / "server-key.pem").read_bytes()
    made = server_certificate(authority, key, ("localhost",), ("127.0.0.1",), began)
    (etc / "server.pem").write_bytes(made)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node has joined 61 days ago, with a certificate for 90 days: its renewal is due."""
    made = Site(tmp_path_factory.mktemp("renewal"))
    try:
        made.up()
        end_in_20_days(made)
        config = str(made.root / "etc" / "coordinator.yaml")
        behind = made.start("coordinator", "coordinator", "--config", config, **BEHIND)
        until(lambda: '"serving"' in behind.tail(), "the coordinator serves")
        made.join(NODE, made.secret(), env=BEHIND)
        restart(made, made.env)
        yield made
    finally:
        for daemon in reversed(made.daemons):
            daemon.stop()


def test_the_end_of_the_coordinators_certificate_is_in_the_list_of_nodes_and_the_log(
    site: Site,
) -> None:
    said = f"the coordinator's tls.cert, {site.root}/etc/server.pem, ends at "
    until(lambda: any(said in each for each in site.client().nodes().warnings), "the warning")
    assert said in " ".join(site.muster("nodes").stderr.split())
    lines = map(json.loads, site.daemons[0].log.read_text().splitlines())
    logged = [line for line in lines if line["event"] == "certificate_ends"]
    assert any(line["why"].startswith(said) for line in logged)
    assert all(line["level"] == "warning" for line in logged)


def test_a_running_agent_connects_again_with_a_renewed_certificate(site: Site) -> None:
    """The connection would not end by itself for months: without another one, the certificate
    before, and every copy of it, would be good for so long."""
    path = site.certificate(NODE)
    before = path.read_bytes()
    copied = site.certificate("copy")
    copied.parent.mkdir(parents=True)
    copied.write_bytes(before)
    # Keep the agent from its renewal until it is connected.
    obstacle = path.with_name(f"{path.name}.next-key")
    obstacle.mkdir()
    agent = site.agent(NODE)
    until(lambda: site.links().get(NODE) == "connected", "the node is in the pool")
    assert path.read_bytes() == before
    # Any other request than a renewal, for which the certificate before the last is good.
    assert site.post("/v1/jobs", {}, "copy")[0] == 403
    obstacle.rmdir()
    until(lambda: '"certificate_renewed"' in agent.log.read_text(), "the agent renews")
    assert path.read_bytes() != before
    until(lambda: site.post("/v1/jobs", {}, "copy")[0] == 401, "the old certificate ends")
    until(lambda: site.links().get(NODE) == "connected", "the node is back")
    assert site.post("/v1/jobs", {}, NODE)[0] == 403

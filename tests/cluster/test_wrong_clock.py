"""Certificates that are signed while the coordinator's clock is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.link.dialer import ConnectionLostError, Dialer
from agent.link.renewal import CertificateRenewal
from muster.daemon.clock import SystemClock
from tests.cluster.enrolment import Site
from tests.cluster.jobs import until

AHEAD = Path(__file__).parents[1] / "storm" / "ahead"
TWO_DAYS = {"PYTHONPATH": str(AHEAD), "MUSTER_TEST_AHEAD_S": str(2 * 86400)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.up()
    made.serve()
    try:
        yield made
    finally:
        for daemon in reversed(made.daemons):
            daemon.stop()


def restart(site: Site, env: Mapping[str, str]) -> None:
    coordinator = site.daemons[0]
    coordinator.stop()
    coordinator.env = dict(env)
    coordinator.log.unlink()
    coordinator.start()
    until(lambda: '"serving"' in coordinator.tail(), "the coordinator serves")


def renew(site: Site, node: str) -> bool:
    """Renew a certificate at once; returns whether the agent took the new one."""
    path = site.certificate(node)
    before = path.read_bytes()

    async def step() -> None:
        ca, url = site.root / "etc" / "ca.pem", f"https://127.0.0.1:{site.agents_port}"
        async with Dialer(url, None, ca, path) as dialer:
            await CertificateRenewal(dialer, path, node, SystemClock()).step(path, at_once=True)

    asyncio.run(step())
    return path.read_bytes() != before


def test_a_coordinator_with_a_wrong_clock_signs_nothing_and_locks_no_node_out(site: Site) -> None:
    """The coordinator's clock is two days ahead while a node renews its certificate and another
    joins, and then set right.
    """
    site.join("gpu-05", site.secret())
    right = dict(site.daemons[0].env)
    restart(site, {**right, **TWO_DAYS})
    before = site.certificate("gpu-05").read_bytes()
    with pytest.raises(ConnectionLostError, match=r"no certificate is signed.*clock") as caught:
        renew(site, "gpu-05")
    assert not caught.value.refused, "the agent asks again"
    assert site.certificate("gpu-05").read_bytes() == before
    secret = site.secret()
    assert "set the coordinator's clock" in site.join("gpu-06", secret, code=1).stderr

    restart(site, right)
    agent = site.agent("gpu-05")
    until(lambda: site.links().get("gpu-05") == "connected", "the node connects")
    agent.stop()
    assert renew(site, "gpu-05")
    agent.start()
    until(lambda: site.links().get("gpu-05") == "connected", "the node connects again")
    site.join("gpu-06", secret)

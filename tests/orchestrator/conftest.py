"""A single coordinator process for all tests of a module that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.orchestrator.process import CoordinatorProcess


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    folder = tmp_path_factory.mktemp("coordinator")
    pools = {"lab": {"defaults": {"time_limit": "24h", "retry": {"infra": 9}}}}
    # Agents by hand send no heartbeats: a test on a busy machine is not silent too soon.
    made = CoordinatorProcess(folder, heartbeat_s=20, lease_s=60, pools=pools)
    with made.start() as process:
        yield process


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Start a coordinator that is also reached as muster.test."""
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(folder, names=["muster.test"]).start() as process:
        yield process

"""A setting of agents that is changed on the coordinator alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.local_cluster import LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import until


class Checked(LocalCluster):
    """A node with a health check that counts its runs."""

    @property
    def runs(self) -> int:
        return (self.root / "runs").read_text().count("ran")

    def _place(self, number: int) -> dict[str, object]:
        path = self.root / "health-check"
        path.write_text(f"#!/bin/sh\necho ran >> {self.root}/runs\n")
        path.chmod(0o755)
        return {**super()._place(number), "health_check": str(path)}


@pytest.fixture
def checked(tmp_path: Path) -> Iterator[Checked]:
    made = Checked(tmp_path / "cluster", agents=1, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def shown(cluster: LocalCluster, name: str) -> tuple[str, str]:
    settings = cluster.client().node("node-1").settings
    return next((it.value, it.origin) for it in settings if it.name == name)


def test_a_change_acts_without_a_restart_of_either(checked: Checked) -> None:
    name = "health_check_period_s"
    coordinator, agent = checked.coordinator, checked.nodes["node-1"]
    pids = coordinator.pid, agent.pid
    file = checked.root / "config" / "coordinator.yaml"
    config = yaml.safe_load(file.read_text())

    def reload(**changed: object) -> None:
        file.write_text(yaml.safe_dump({**config, **changed}))
        os.kill(coordinator.pid, signal.SIGHUP)

    reload(nodes={"names": {"node-1": {name: 1}}})
    until(lambda: shown(checked, name) == ("1.0", "coordinator's nodes.names.node-1"), "it is used")
    until(lambda: checked.runs > 3, "the node is checked more often")
    # A file with a mistake changes nothing, and the log says which.
    reload(nodes={"names": {"node-1": {"run_as": "root"}}})
    until(lambda: "settings_refused" in coordinator.tail(50), "the file is refused")
    assert "run_as is not for a coordinator to give" in coordinator.tail(50)
    assert shown(checked, name)[0] == "1.0"
    reload(nodes={"pools": {"default": {name: 7}}}, lease_s=301)
    until(lambda: shown(checked, name) == ("7.0", "coordinator's nodes.pools.default"), "of a pool")
    until(lambda: "settings_need_restart" in coordinator.tail(50), "the rest is named")
    assert '"changed":["lease_s"]' in coordinator.tail(50).replace(" ", "")
    reload()
    until(lambda: shown(checked, name) == ("300.0", "default"), "it is taken away")
    assert (coordinator.pid, agent.pid) == pids
    assert checked.client().node("node-1").link == "connected"


def test_a_change_on_the_coordinator_acts_on_a_node_and_is_shown(checked: Checked) -> None:
    name = "health_check_period_s"

    agent = checked.nodes["node-1"].pid
    assert shown(checked, name) == ("300.0", "default")
    file = checked.root / "config" / "coordinator.yaml"
    config = yaml.safe_load(file.read_text())
    given = {"pools": {"default": {name: 7}}, "names": {"node-1": {name: 1}}}
    file.write_text(yaml.safe_dump({**config, "nodes": given}))
    checked.coordinator.stop()
    checked.coordinator.start()
    checked.wait_for_nodes()
    until(
        lambda: shown(checked, name) == ("1.0", "coordinator's nodes.names.node-1"),
        "the setting is shown",
    )
    until(lambda: checked.runs > 3, "the node is checked more often")
    assert checked.nodes["node-1"].pid == agent
    said = " ".join(checked.muster("node", "show", "node-1").stdout.split())
    assert f"{name} 1.0 coordinator's nodes.names.node-1" in said
    assert "log.level" in said

"""The image of a node, started on a second machine: the node keeps its name and its job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.namespace_cluster import MachineDaemon, NamespaceCluster
from examples.rig.rig import missing
from tests.cluster.jobs import await_file, await_running, submit, until, wait

pytestmark = pytest.mark.root

RUN = """
echo $$ >> ran.$MUSTER_ATTEMPT
until [ -e go ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    if why := missing():
        pytest.skip(why)
    env = {"MUSTER_COORDINATOR_HEARTBEAT_S": "1"}
    made = NamespaceCluster(tmp_path_factory.mktemp("copied"), agents=2, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def copy_of(cluster: NamespaceCluster, number: str) -> MachineDaemon:
    """An agent on the second machine with all that the first one's image had before its job."""
    first, second = cluster.nodes["node-1"], cluster.nodes["node-2"]
    assert isinstance(first, MachineDaemon)
    assert isinstance(second, MachineDaemon)
    state = cluster.root / "state" / f"copy-{number}"
    state.mkdir(mode=0o700)
    for name in ("agent_id", "cluster"):
        shutil.copy(cluster.root / "state" / "node-1" / name, state)
    config = Path(first.command[first.command.index("--config") + 1])
    settings = {**yaml.safe_load(config.read_text()), "state_dir": str(state)}
    path = config.with_name(f"copy-{number}.yaml")
    path.write_text(yaml.safe_dump(settings))
    argv = [*first.command[: first.command.index("--config")], "--config", str(path)]
    log = cluster.root / "logs" / f"copy-{number}.log"
    return MachineDaemon(f"copy-{number}", argv, first.env, log, machine=second.machine)


@pytest.mark.fault(42)
@pytest.mark.parametrize("away", [False, True], ids=("connected", "cut off"))
def test_the_copy_is_refused_and_both_are_named(
    cluster: NamespaceCluster, tmp_path: Path, away: bool
) -> None:
    job = submit(cluster, tmp_path, run=RUN, placement={"include": ["node-1"]})
    pid = await_file(tmp_path / "ran.1")
    await_running(cluster, job)
    first, second = (cluster.machines[name] for name in ("node-1", "node-2"))
    cluster.nodes["node-2"].stop()
    client = cluster.client()
    if away:
        # It may be running something until it is declared lost, and is not replaced before.
        first.cut(inbound=True, outbound=True)
        until(lambda: client.node("node-1").link == "suspect", "node-1 is cut off")
    copy = copy_of(cluster, "away" if away else "here")
    copy.start()
    try:
        until(lambda: "duplicate_identity" in copy.log.read_text(), "the copy is refused")
        lines = copy.log.read_text().splitlines()
        why = json.loads(next(line for line in lines if "duplicate_identity" in line))["why"]
        assert f"in use by an agent at {first.address}; this one is at {second.address}" in why
        assert "a state folder has been copied" in why
        shown = " ".join(cluster.muster("node", "show", "node-1").stdout.split())
        assert second.address in shown
        assert "welcomed" not in copy.log.read_text()
    finally:
        copy.kill()
        first.mend()
        cluster.nodes["node-2"].start()
    cluster.wait_for_nodes()
    await_running(cluster, job)
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    assert len(client.job(int(job)).attempts) == 1
    assert (tmp_path / "ran.1").read_text() == pid

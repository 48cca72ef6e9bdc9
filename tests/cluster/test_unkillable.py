"""Processes that the kernel holds: their job goes on elsewhere, their node is given to nobody.

A frozen process survives SIGKILL until it is thawed, as one in disk sleep does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.leftovers.fuse import CONNECTIONS, abort_fuse
from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, await_running, submit, until, wait
from tests.fuse import SELF_SERVED, fusectl

PLAIN = "echo $$ > pid; exec sleep 10000"
# Its first thread ends and it looks like a zombie, as beside a GPU driver that hangs.
HEADLESS = """
cat > train.py <<'END'
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(10000,)).start()
with open("pid", "w") as file:
    file.write(f"{os.getpid()}\\n")
ctypes.CDLL(None).pthread_exit(None)
END
exec python3 train.py
"""


@pytest.fixture
def cluster(tmp_path: Path, freezer: Path) -> Iterator[LocalCluster]:
    env = {**PORTS, "MUSTER_AGENT_UNKILLABLE_S": "0.5"}
    made = LocalCluster(tmp_path / "cluster", agents=3, env=env)
    with made:
        yield made
        thaw(freezer)
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def freeze(freezer: Path, pid: str) -> None:
    (freezer / "cgroup.procs").write_text(pid)
    (freezer / "freezer.state").write_text("FROZEN")
    until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")


def thaw(freezer: Path) -> None:
    (freezer / "freezer.state").write_text("THAWED")


@pytest.mark.fault(31)
@pytest.mark.parametrize("run", [PLAIN, HEADLESS], ids=("plain", "headless"))
def test_a_cancelled_job_ends_and_its_node_is_drained_until_it_is_clean(
    cluster: LocalCluster, tmp_path: Path, freezer: Path, run: str
) -> None:
    job = submit(cluster, tmp_path, run=run, stop={"grace": "200ms"})
    pid = await_file(tmp_path / "pid").strip()
    await_running(cluster, job)
    client = cluster.client()
    name = client.job(int(job)).attempts[0].tasks[0].node
    freeze(freezer, pid)
    cluster.muster("cancel", job)
    assert wait(cluster, job) == 121
    assert Path(f"/proc/{pid}/stat").exists()
    drain = client.node(name).drain
    assert drain is not None
    assert drain.user == "muster"
    assert drain.reason.startswith(f"unkillable: SIGKILL does not end {pid} of job {job}")

    # The restarted agent finds the same, and no new task goes to that node.
    cluster.nodes[name].kill()
    cluster.nodes[name].start()
    cluster.wait_for_nodes()
    assert client.node(name).drain is not None
    refused = cluster.muster("node", "resume", name, check=False)
    assert refused.returncode == 125
    assert f"SIGKILL has not ended {pid} of task {job}.1.0 yet" in " ".join(refused.stderr.split())
    later = submit(cluster, tmp_path, run="true", placement={"include": [name]})
    assert client.job(int(later)).state is JobState.QUEUED
    explained = " ".join(cluster.muster("explain", later).stdout.split())
    assert f"SIGKILL does not end {pid}" in explained

    thaw(freezer)
    until(
        lambda: cluster.muster("node", "resume", name, check=False).returncode == 0,
        "the node is clean and can be resumed",
    )
    assert wait(cluster, later) == 0
    assert client.job(int(job)).state is JobState.CANCELLED
    folder = cluster.root / "state" / name / "tasks" / f"{job}.1.0"
    until(lambda: not folder.exists(), "its folder is gone")


@pytest.mark.fault(31, 37)
def test_a_gang_is_tried_again_on_other_nodes_over_a_kill_of_the_coordinator(
    cluster: LocalCluster, tmp_path: Path, freezer: Path
) -> None:
    """SIGKILL does not end one of two ranks, and the other fails: its node is free for the next
    attempt."""
    run = (
        'echo $$ > "pid.$MUSTER_ATTEMPT.$MUSTER_NODE_RANK"; '
        'if [ "$MUSTER_ATTEMPT.$MUSTER_NODE_RANK" = 1.0 ]; then '
        "until [ -e fail ]; do sleep 0.05; done; exit 7; fi; "
        "until [ -e go ]; do sleep 0.05; done"
    )
    retry = {"user": 1, "backoff": "0s"}
    job = submit(cluster, tmp_path, run=run, nodes=2, retry=retry, stop={"grace": "200ms"})
    pid = await_file(tmp_path / "pid.1.1").strip()
    await_running(cluster, job)
    client = cluster.client()
    first, held = (task.node for task in client.job(int(job)).attempts[0].tasks)
    freeze(freezer, pid)
    (tmp_path / "fail").touch()
    until(lambda: client.node(held).drain is not None, "the node is drained")
    cluster.coordinator.kill()
    cluster.coordinator.start()
    cluster.wait_for_nodes()
    await_file(tmp_path / "pid.2.1")
    assert Path(f"/proc/{pid}/stat").exists()
    again = {task.node for task in client.job(int(job)).attempts[1].tasks}
    assert held not in again
    assert first in again
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    assert client.node(held).drain is not None
    assert len(client.job(int(job)).attempts) == 2
    # It never runs its program again.
    thaw(freezer)
    until(lambda: not alive(int(pid)), "it ends")


@pytest.mark.root
def test_a_job_that_waits_for_its_own_fuse_file_system_ends_and_drains_no_node(
    tmp_path: Path,
) -> None:
    """Any user may make such processes on all nodes at once, where users may mount FUSE."""
    (tmp_path / "serves.py").write_text(SELF_SERVED)
    (tmp_path / "mount").mkdir()
    run = "exec unshare -Urm python3 serves.py mount waits"
    env = {**PORTS, "MUSTER_AGENT_UNKILLABLE_S": "0.5"}
    made = LocalCluster(tmp_path / "cluster", agents=1, env=env)
    with contextlib.ExitStack() as stack:
        stack.enter_context(fusectl(CONNECTIONS))
        stack.enter_context(made)
        job = submit(made, tmp_path, run=run, stop={"grace": "200ms"})
        pid = int(await_file(tmp_path / "waits"))
        stack.callback(abort_fuse, [pid])
        made.muster("cancel", job)
        assert wait(made, job) == 121
        assert made.client().node("node-1").drain is None
        assert wait(made, submit(made, tmp_path, run="true")) == 0
    until(lambda: made.leftovers() == [], "no process of the cluster is left")

"""Jobs that do not want to go: nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, await_running, limit_in, submit, until, wait

# Ignores every signal that can be ignored. Daemons in sessions of their own, one of them with an
# empty environment; a bomb whose processes fork two for each that dies, up to a bound; a port, an
# open file that has been removed, and files in every folder that it was given.
ADVERSARY = """
import os, signal, socket, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)

def note():
    fd = os.open("pids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"%d\\n" % os.getpid())
    os.close(fd)

def daemon(then):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    note()
    then()
    os._exit(0)

def for_ever():
    while True:
        time.sleep(0.1)

def bare():
    code = "import signal, time; signal.signal(15, 1); time.sleep(10000)"
    os.execve(sys.executable, [sys.executable, "-c", code], {})

def bomb(left):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while left > 0:
        left -= 1
        if not os.fork():
            note()
            if left % 7 == 0:
                time.sleep(0.05)
                os._exit(0)
            time.sleep(10000)
    for_ever()

held = open("held", "w")
os.unlink("held")
for folder in ("MUSTER_SCRATCH", "TMPDIR"):
    if folder in os.environ:
        open(os.path.join(os.environ[folder], "left"), "w").close()
port = socket.create_server(("127.0.0.1", 0))
note()
daemon(for_ever)
daemon(bare)
daemon(lambda: bomb(60))
while open("pids").read().count("\\n") < 50:
    time.sleep(0.01)
with open("up", "w") as file:
    file.write(f"{port.getsockname()[1]}\\n")
for_ever()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    env = {**PORTS, "MUSTER_AGENT_UNKILLABLE_S": "0.5"}
    made = LocalCluster(tmp_path_factory.mktemp("adversary"), agents=1, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def task_folder(cluster: LocalCluster, job: str) -> Path:
    return cluster.root / "state/node-1/tasks" / f"{job}.1.0"


def mounts(cluster: LocalCluster) -> list[str]:
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if str(cluster.root) in line]


@pytest.mark.fault(31, 32, 33)
@pytest.mark.parametrize("end", ["cancel", "shim", "shim-and-agent", "limit"])
def test_nothing_of_an_adversary_is_left(cluster: LocalCluster, tmp_path: Path, end: str) -> None:
    (tmp_path / "train.py").write_text(ADVERSARY)
    job = submit(
        cluster,
        tmp_path,
        run="exec python3 train.py",
        stop={"grace": "200ms"},
        retry={"infra": 0},
    )
    port = int(await_file(tmp_path / "up"))
    identity = json.loads((task_folder(cluster, job) / "shim.json").read_text())
    shim, cgroup = identity["pid"], identity["cgroup"]
    if end.startswith("shim") and cgroup is None:
        pytest.skip("without a cgroup nobody knows of a process that has emptied its environment")
    agent = cluster.nodes["node-1"]
    match end:
        case "cancel":
            cluster.muster("cancel", job)
        case "shim":
            os.kill(shim, signal.SIGKILL)
        case "shim-and-agent":
            agent.kill()
            os.kill(shim, signal.SIGKILL)
            agent.start()
        case _:
            await_running(cluster, job)
            limit_in(cluster, job, 2)
    code = wait(cluster, job)
    assert code == {"cancel": 121, "limit": 124}.get(end, 122)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) > 40
    assert [pid for pid in pids if alive(pid)] == []
    assert cluster.survivors() == []
    assert cgroup is None or not Path(cgroup).exists()
    assert mounts(cluster) == []
    with socket.create_server(("127.0.0.1", port)):
        pass
    until(lambda: not task_folder(cluster, job).exists(), "its folder is gone")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("job")) == [
        "pids",
        "train.py",
        "up",
    ]

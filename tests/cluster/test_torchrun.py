"""A real gang under torchrun, and the demo that shows it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import examples
from examples.local_cluster import MUSTER, LocalCluster
from examples.rig.rig import missing
from tests.cluster.jobs import alive, logs, submit, until, wait

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(next(iter(examples.__path__)))
FAILS = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
with open(f"pid.{rank}", "w") as file:
    file.write(f"{os.getpid()}\\n")
if rank == 3:
    for other in range(4):
        while not os.path.exists(f"pid.{other}"):
            time.sleep(0.01)
    raise ValueError("the third rank gives up")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"""


def test_pi_on_three_nodes(cluster: LocalCluster) -> None:
    pi = EXAMPLES / "pi"
    done = cluster.muster("submit", "-f", str(pi / "job.yaml"))
    job = done.stdout.strip()
    followed = logs(cluster, "-f", "--rank", "all", "--tail", "all", "--exit-status", job)
    assert re.search(r"^\[node-1 r0\] pi = 3\.14159265359", followed.stdout, re.MULTILINE)
    for rank in range(6):
        node = 1 + rank // 2
        prefix = (
            rf"^\[node-{node} r{rank}\] rank {rank} of 6 on node {node - 1}, local rank {rank % 2}$"
        )
        assert re.search(prefix, followed.stdout, re.MULTILINE), followed.stdout
    assert "launcher" not in followed.stderr
    view = cluster.client().job(int(job))
    assert [r.rank for t in view.attempts[0].tasks for r in t.ranks] == [0, 1, 2, 3, 4, 5]


def test_further_options_of_torchrun_hold(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "role.py").write_text(
        "import os\nopen('role', 'w').write(os.environ['ROLE_NAME'])\n"
    )
    options = ["--role", "trainer", "--monitor-interval=0.2"]
    job = submit(cluster, tmp_path, launcher="torchrun", run="role.py", torchrun_args=options)
    assert wait(cluster, job) == 0
    assert (tmp_path / "role").read_text() == "trainer"
    shown = cluster.muster("show", job, "--env").stdout
    assert re.search(r"^MUSTER_NODE_RANK +0 +muster$", shown, re.MULTILINE), shown


def test_the_failing_rank_is_named_although_its_siblings_stay(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    job = submit(
        cluster,
        tmp_path,
        launcher="torchrun",
        nodes=2,
        nproc_per_node=2,
        run="fails.py",
        stop={"grace": "1s"},
    )
    assert wait(cluster, job) == 1
    view = cluster.client().job(int(job))
    assert "rank 3 on node-2 exited with code 1" in view.reason.text
    pids = [int((tmp_path / f"pid.{rank}").read_text()) for rank in range(4)]
    assert [pid for pid in pids if alive(pid)] == []
    errors = logs(cluster, "--rank", "3", "--stderr", job)
    assert "the third rank gives up" in errors.stdout + errors.stderr


def test_the_demo() -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "pi = 3.14159265359" in demo.stdout
    assert "every node started" in demo.stdout
    assert "host names are not tested" in demo.stdout
    assert "nothing is left" in demo.stdout


def test_a_demo_that_is_interrupted_as_it_starts_says_so_in_words() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    said = demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    said += demo.communicate(timeout=300)[0]
    assert demo.returncode == 130, said
    assert "nothing is left" in said
    assert "Traceback" not in said


@pytest.mark.root
@pytest.mark.long
def test_the_demo_on_machines_of_their_own() -> None:
    if why := missing():
        pytest.skip(why)
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--namespaces"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "pi = 3.14159265359" in demo.stdout
    for number in (1, 2, 3):
        for when in ("while the job runs", "after the job"):
            _, shown, rest = demo.stdout.partition(f"node-{number}$ cat /etc/hosts   # {when}\n")
            assert shown
            assert ("# BEGIN muster 1.1" in rest.partition("\n\n")[0]) is (when[0] == "w")
    assert re.search(r"node-1\$ getent hosts node-2\n10\.77\.0\.12 +node-2\n", demo.stdout)
    assert "nothing is left" in demo.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
def test_the_demo_on_machines_of_their_own_needs_root() -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--namespaces"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 1
    assert "superuser" in demo.stdout
    assert "Traceback" not in demo.stderr


@pytest.mark.long
def test_a_demo_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "examples.demo"],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=out,
            stderr=out,
        )
    until(lambda: b"round 1" in log.read_bytes(), "the job runs")
    demo.send_signal(signal.SIGINT)
    demo.wait(300)
    assert [p.name for p in tmp_path.iterdir()] == ["demo.log"]
    assert _marked(str(tmp_path)) == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_demo_that_is_kept_can_be_used_and_ended(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--keep"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    config = re.search(r"export MUSTER_CONFIG=(\S+)", demo.stdout)
    pids = re.search(r"^ {2}kill ([\d ]+)$", demo.stdout, re.MULTILINE)
    assert config, demo.stdout + demo.stderr
    assert pids, demo.stdout
    try:
        used = subprocess.run(
            [MUSTER, "submit", "--nodes", "3", "--wait", "--", "true"],
            cwd="/",
            env={**env, "MUSTER_CONFIG": config[1]},
            capture_output=True,
            check=False,
        )
        assert used.returncode == 0, used.stderr
    finally:
        for pid in pids[1].split():
            os.kill(int(pid), signal.SIGTERM)
    until(lambda: _marked(str(tmp_path)) == [], "no process is left")


def _marked(text: str) -> list[Path]:
    """Processes whose environment names `text`."""
    return [p for p in Path("/proc").glob("[0-9]*/environ") if text.encode() in _read(p)]

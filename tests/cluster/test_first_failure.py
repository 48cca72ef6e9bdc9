"""The first failure of a gang: named at once, with what it said and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.local_cluster import LocalCluster
from muster.http.views import JobView
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, submit, until, wait

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="torch is not installed")

STUBBORN = """
import os, signal, time
rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"pid.{rank}", "w") as file:
    file.write(f"{os.getpid()}\\n")
if rank == 3:
    for other in range(4):
        while not os.path.exists(f"pid.{other}"):
            time.sleep(0.01)
    print("\\x1b[31mabout to fail", flush=True, file=__import__("sys").stderr)
    raise ValueError("rank three gives up")
time.sleep(1000)
"""

# Rank 1 fails; the others notice their lost connections, as with torch.
PEERS = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if sys.argv[1] == "raise":
        raise ValueError("rank one gives up")
    if sys.argv[1] == "import":
        import no_such_module
    if sys.argv[1] == "cuda":
        torch.zeros(1).cuda()
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1))
"""


def gang(cluster: LocalCluster, folder: Path, run: str, **job: Any) -> str:
    spec = {"launcher": "torchrun", "nodes": 2, "nproc_per_node": 2, **job}
    return submit(cluster, folder, run=run, **spec)


def view(cluster: LocalCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


def test_it_is_named_while_the_siblings_still_refuse_to_go(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STUBBORN)
    job = gang(cluster, tmp_path, "train.py", stop={"grace": "1h"})
    until(lambda: view(cluster, job).state is JobState.STOPPING, "stopping")
    now = view(cluster, job)
    assert now.reason.text.startswith("rank 3 on node-2 exited with code 1: ValueError: rank three")
    assert now.failure == "exception"
    assert now.kill_at is not None
    shown = cluster.muster("show", job).stdout
    assert "of the grace period left" in shown
    assert "\\x1b[31mabout to fail" in shown
    assert "    ValueError: rank three gives up" in shown.replace("[rank3]: ", "")
    cluster.muster("cancel", "--force", "--wait", job)
    ended = view(cluster, job)
    ranks = {r.rank: r.stopped for t in ended.attempts[0].tasks for r in t.ranks}
    assert ranks == {0: True, 1: True, 2: True, 3: False}
    assert any("; 3 ranks stopped by Muster" in step.text for step in ended.timeline)


@pytest.mark.parametrize(
    ("how", "kind", "expected", "code"),
    [
        ("kill", "killed", "out-of-memory killer", 137),
        ("segfault", "segfault", "PYTHONFAULTHANDLER", 139),
        ("raise", "exception", "ValueError: rank one gives up", 1),
        ("import", "no_module", "has no module no_such_module", 1),
        ("cuda", "no_cuda", "", 1),
    ],
)
def test_ranks_that_lost_their_connection_are_not_blamed(
    cluster: LocalCluster, tmp_path: Path, how: str, kind: str, expected: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(PEERS)
    job = gang(cluster, tmp_path, f"train.py {how}", nproc_per_node=1)
    ended = cluster.muster("wait", "--timeout", "300s", job, check=False)
    assert ended.returncode == code
    found = view(cluster, job)
    cause = found.attempts[0].cause
    assert cause is not None
    assert (cause.rank, cause.node, cause.kind) == (1, "node-2", kind), cause
    assert expected in ended.stderr
    assert json.loads(cluster.muster("show", "--json", job).stdout)["failure"] == kind


def test_a_script_that_is_not_there(cluster: LocalCluster, tmp_path: Path) -> None:
    job = gang(cluster, tmp_path, "nope.py")
    assert wait(cluster, job) == 2
    found = view(cluster, job)
    assert found.failure == "no_script"
    assert "nope.py on that node" in found.reason.text


def test_a_gang_is_warned_on_all_nodes_and_then_stopped(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    script = "trap 'echo $(date +%s.%N) > warned.$MUSTER_NODE_RANK' USR1; "
    script += "trap 'echo saved > saved.$MUSTER_NODE_RANK; exit 0' TERM; "
    script += "while true; do sleep 0.05 || true; done"
    job = submit(
        cluster,
        tmp_path,
        nodes=3,
        run=script,
        time_limit="10s",
        stop={"warn": "USR1@4s", "grace": "30s"},
    )
    stamps = [float(await_file(tmp_path / f"warned.{rank}")) for rank in range(3)]
    running = view(cluster, job)
    assert running.limit_at is not None
    assert wait(cluster, job) == 124
    ended = view(cluster, job)
    assert ended.started_at is not None
    print(f"warned {max(stamps) - min(stamps):.3f} s apart")
    assert all(stamp >= ended.started_at.timestamp() + 3 for stamp in stamps)
    assert [(tmp_path / f"saved.{rank}").read_text() for rank in range(3)] == ["saved\n"] * 3
    steps = [step.text for step in ended.timeline]
    assert "ranks warned that the time limit is near" in steps

"""Real gangs that hang, and one that is merely slow: found by what their processes do, named by
their stacks. The times are the product's, made shorter by its own configuration."""

from __future__ import annotations

import contextlib
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.probe import py_spy_check
from examples.local_cluster import LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import assert_forked, pid_of, submit, until
from tests.cluster.scripted_fabric import ScriptedCluster

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(py_spy_check.find() is None, reason="py-spy is not installed"),
]

QUICK = {
    "MUSTER_AGENT_HANGS_PERIOD_S": "0.5",
    "MUSTER_COORDINATOR_HANGS_QUIET_S": "5",
    "MUSTER_COORDINATOR_HANGS_AGAIN_S": "1",
    "MUSTER_COORDINATOR_HANGS_SLOW_S": "600",
    # A machine that is busy with other tests makes pauses that are none.
    "MUSTER_COORDINATOR_HANGS_GAPS": "2",
}
TRAIN = """
import ctypes, os, pickle, sys, threading, time
import torch, torch.distributed as dist

def stuck():
    ctypes.PyDLL(None).sleep(600)

def save(folder):
    with open(os.path.join(folder, "checkpoint"), "wb") as file:
        while not os.path.exists("saved"):
            file.seek(0)
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())

def recorder(rank):
    # As NCCL has it: a byte comes through the pipe; the rank says so in its log and writes a dump.
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe"
    os.makedirs(os.path.dirname(pipe), exist_ok=True)
    os.mkfifo(pipe)
    trigger = os.open(pipe, os.O_RDWR)
    entry = {"collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "state": "scheduled"}
    dump = pickle.dumps({"entries": [entry], "stacks": "x" * (4 << 20)})
    while os.read(trigger, 1):
        print("dumps\\n" * 1000, flush=True)
        with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + str(rank), "wb") as file:
            file.write(dump)
            file.flush()
            os.fsync(file.fileno())

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if os.path.exists("records"):
        threading.Thread(target=recorder, args=(rank,), daemon=True).start()
    x = torch.ones(100_000)
    for step in range(1_000_000):
        dist.all_reduce(x)
        x /= dist.get_world_size()
        if step % 20 == 0:
            print("step", step, flush=True)
        if rank == 1 and os.path.exists("hold"):
            stuck()
        if rank == 0 and os.path.exists("save"):
            save(".")
        time.sleep(0.01)

main()
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    yield from run(LocalCluster(tmp_path_factory.mktemp("hangs"), 2, env={**PORTS, **QUICK}))


@pytest.fixture
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Its nodes have HCAs, so that NCCL is given a recorder."""
    yield from run(ScriptedCluster(tmp_path_factory.mktemp("hangs"), 2, env={**PORTS, **QUICK}))


def run(made: LocalCluster) -> Iterator[LocalCluster]:
    with made:
        yield made
        for job in made.client().all_jobs().jobs:
            made.muster("cancel", str(job.id), "--force", "--wait", check=False)
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def training(cluster: LocalCluster, tmp_path: Path, **job: Any) -> str:
    """A gang that has made steps for long enough to have a cadence."""
    (tmp_path / "train.py").write_text(TRAIN)
    number = submit(
        cluster, tmp_path, launcher="torchrun", run="train.py", nodes=2, nproc_per_node=2, **job
    )

    def learned() -> bool:
        ranks = evidence(cluster, number)["attempts"][-1:]
        seen = ranks[0]["activity"] if ranks else []
        return len(seen) == 4 and all(rank.get("learned") for rank in seen)

    until(learned, "every rank has a cadence")
    return number


def evidence(cluster: LocalCluster, job: str) -> Any:
    return msgspec.to_builtins(cluster.client().evidence(int(job)))


def verdicts(cluster: LocalCluster, job: str) -> list[Any]:
    found = evidence(cluster, job)["attempts"]
    return [hang["verdict"] for attempt in found for hang in attempt["hangs"]]


def end(cluster: LocalCluster, job: str) -> None:
    cluster.muster("cancel", job, "--force", "--wait", check=False)


def test_a_rank_that_is_stopped_is_found_and_named(quick: LocalCluster, tmp_path: Path) -> None:
    job = training(quick, tmp_path)
    stacks = quick.muster("stacks", job).stdout
    assert "train.py:" in stacks
    assert f"job {job}, attempt 1  4 ranks" in stacks
    victim = pid_of(quick, job, 3)
    os.kill(victim, signal.SIGSTOP)
    try:
        until(lambda: bool(verdicts(quick, job)), "the hang is found")
        (found,) = verdicts(quick, job)
        assert (found["kind"], found["rank"], found["node"]) == ("hung", 3, "node-2")
        assert "rank 3 at " in found["text"]
        assert "stopped by a signal" in found["text"]
        assert {rank for group in found["groups"] for rank in group["ranks"]} == {0, 1, 2, 3}
        assert "hung: rank 3" in quick.muster("show", job).stdout
        assert "hung: rank 3" in quick.muster("events", job).stdout
        tar = tmp_path / "evidence.tar.gz"
        quick.muster("evidence", job, "-o", str(tar))
        assert quick.muster("evidence", job, "-o", str(tar), check=False).returncode == 125
        with tarfile.open(tar) as whole:
            said = whole.extractfile(f"muster-job-{job}/verdicts.txt")
            assert said is not None
            assert b"hung: rank 3" in said.read()
            logs = whole.extractfile(f"muster-job-{job}/logs.txt")
            assert logs is not None
            assert b"rank 3 stdout] step" in logs.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    until(lambda: "it moves again" in quick.muster("events", job).stdout, "it moves again")
    assert_forked(quick, job)
    end(quick, job)


@pytest.mark.long
def test_a_held_gil_is_found_and_the_job_tried_again(quick: LocalCluster, tmp_path: Path) -> None:
    job = training(quick, tmp_path, hang="restart", retry={"infra": 1, "backoff": "1s"})
    (tmp_path / "hold").touch()
    until(lambda: bool(verdicts(quick, job)), "the hang is found")
    (tmp_path / "hold").unlink()
    found = verdicts(quick, job)[0]
    assert (found["kind"], found["rank"], found["firm"]) == ("hung", 1, True)
    line = TRAIN.splitlines().index("    ctypes.PyDLL(None).sleep(600)") + 1
    assert found["place"] == f"train.py:{line}"
    until(lambda: len(evidence(quick, job)["attempts"]) == 2, "it is tried again")
    cause = evidence(quick, job)["attempts"][0]["cause"]
    assert (cause["code"], cause["outcome"]) == ("hung", "infra")
    assert cause["text"] == f"hung: rank 1 at train.py:{line}"
    end(quick, job)


def test_ranks_that_write_what_their_recorder_knows_still_hang(
    wired: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "records").touch()
    job = training(wired, tmp_path, hang="dump")
    victim = pid_of(wired, job, 3)
    os.kill(victim, signal.SIGSTOP)
    try:
        until(lambda: bool(verdicts(wired, job)), "the hang is found")
        (found,) = verdicts(wired, job)
        assert (found["kind"], found["rank"]) == ("hung", 3)
        last = {rank["rank"]: (rank.get("last"), rank.get("problem")) for rank in found["recorded"]}
        assert last.keys() == {0, 1, 2, 3}
        assert "nccl:all_reduce number 7" in last[0][0]
        assert "wrote nothing" in last[3][1]
        # Nor does the gang count as moving again once that is reported.
        seen = evidence(wired, job)["attempts"][-1]["activity"]
        until(
            lambda: evidence(wired, job)["attempts"][-1]["activity"] != seen,
            "the ranks are looked at again",
        )
        assert "it moves again" not in wired.muster("events", job).stdout
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    end(wired, job)


def test_a_slow_checkpoint_is_no_hang(quick: LocalCluster, tmp_path: Path) -> None:
    job = training(quick, tmp_path, hang="restart")
    (tmp_path / "save").touch()
    until((tmp_path / "checkpoint").exists, "it is written")

    def waited() -> bool:
        seen = quick.client().stacks(int(job)).activity
        return sum((rank.idle_s or 0.0) >= 15.0 for rank in seen) == 3

    until(waited, "the others have waited for it three times as long as it takes to tell a hang")
    assert verdicts(quick, job) == []
    (tmp_path / "saved").touch()
    (tmp_path / "save").unlink()
    assert "hung" not in quick.muster("events", job).stdout
    end(quick, job)

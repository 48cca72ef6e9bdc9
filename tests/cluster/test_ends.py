"""Ends of jobs: exit codes, limits, cancels, and remains of jobs that resist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import alive, await_file, submit, until, wait

RESIST = """
trap '' TERM INT
setsid bash -c "trap '' TERM; (sleep 1000 & echo \\$! >> pids; wait) & echo \\$! >> pids; wait" &
echo $! >> pids
sleep 1000 & echo $! >> pids
echo $$ >> pids
while true; do sleep 1; done
"""


def state(cluster: LocalCluster, job: str) -> JobState:
    return cluster.client().job(int(job)).state


def await_state(cluster: LocalCluster, job: str, wanted: JobState) -> None:
    until(lambda: state(cluster, job) is wanted, f"job {job} {wanted.value}")


def test_success_and_the_jobs_own_code(cluster: LocalCluster, tmp_path: Path) -> None:
    assert wait(cluster, submit(cluster, tmp_path, run="exit 0", nodes=3)) == 0
    assert wait(cluster, submit(cluster, tmp_path, run="exit 42")) == 42
    killed = submit(cluster, tmp_path, run="kill -KILL $$")
    assert wait(cluster, killed) == 137
    reason = cluster.client().job(int(killed)).reason.text
    assert "was killed by SIGKILL" in reason


def test_submit_and_wait_in_one(cluster: LocalCluster, tmp_path: Path) -> None:
    done = cluster.muster("submit", "--wait", "--", "sh", "-c", "exit 7", check=False)
    assert done.returncode == 7
    assert done.stdout.strip().isdecimal()


def test_the_first_failure_stops_the_gang_and_is_named(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(
        cluster,
        tmp_path,
        nodes=3,
        # A rank that has not begun when the gang is stopped has no end.
        run="touch up.$MUSTER_NODE_RANK; [ $MUSTER_NODE_RANK = 2 ] || exec sleep 1000; "
        "until [ -e up.0 ] && [ -e up.1 ]; do sleep 0.05; done; exit 5",
        stop={"grace": "5s"},
    )
    assert wait(cluster, job) == 5
    view = cluster.client().job(int(job))
    assert view.state is JobState.FAILED
    assert view.reason.text.startswith("rank 2 on ")
    others = [r.exit for t in view.attempts[0].tasks for r in t.ranks if r.rank != 2]
    assert [(e.signal if e else None) for e in others] == [15, 15]


def test_a_folder_that_no_node_has(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, nodes=2, run="true", workdir="/no/such/folder")
    assert wait(cluster, job) == 123
    assert "/no/such/folder" in cluster.client().job(int(job)).reason.text


def test_a_program_that_is_not_there(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=["no-such-program"])
    assert wait(cluster, job) == 127
    assert "no-such-program" in cluster.client().job(int(job)).reason.text


def test_setup_runs_first_and_its_failure_is_reported(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    good = submit(cluster, tmp_path, setup="echo ready > made", run="cat made")
    assert wait(cluster, good) == 0
    bad = submit(cluster, tmp_path, setup="echo no such package >&2; exit 3", run="true")
    assert wait(cluster, bad) == 123
    reason = cluster.client().job(int(bad)).reason.text
    assert "exit" in reason
    assert "3" in reason


def test_the_time_limit(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run="sleep 1000", time_limit="1s", stop={"grace": "5s"})
    assert wait(cluster, job) == 124
    assert state(cluster, job) is JobState.TIMEOUT


def test_cancel_while_queued(cluster: LocalCluster, tmp_path: Path) -> None:
    holder = submit(cluster, tmp_path, nodes=3, run="sleep 1000")
    queued = submit(cluster, tmp_path, nodes=1, run="echo never > ran")
    assert state(cluster, queued) is JobState.QUEUED
    cluster.muster("cancel", queued)
    assert wait(cluster, queued) == 121
    cluster.muster("cancel", "--wait", holder)
    assert wait(cluster, holder) == 121
    assert not (tmp_path / "ran").exists()


def test_cancel_while_preparing(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(
        cluster, tmp_path, nodes=2, setup="echo $$ >> setups; sleep 1000", run="echo never > ran"
    )
    until(lambda: _lines(tmp_path / "setups") == 2, "both set-ups run")
    assert state(cluster, job) is JobState.PREPARING
    cluster.muster("cancel", "--wait", job)
    assert wait(cluster, job) == 121
    assert not (tmp_path / "ran").exists()
    assert not any(alive(int(p)) for p in (tmp_path / "setups").read_text().split())


def test_cancel_while_stopping_and_twice_and_after_the_end(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(
        cluster,
        tmp_path,
        run="trap '' TERM; echo up > up; while true; do sleep 1; done",
        stop={"grace": "10m"},
    )
    await_file(tmp_path / "up")
    cluster.muster("cancel", job)
    await_state(cluster, job, JobState.STOPPING)
    cluster.muster("cancel", job)
    cluster.muster("cancel", "--force", "--wait", job)
    assert wait(cluster, job) == 121
    again = cluster.muster("cancel", job)
    assert "ended" in again.stderr


def test_nothing_survives_a_cancel(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=RESIST, stop={"grace": "1s"})
    until(lambda: _lines(tmp_path / "pids") >= 5, "the whole tree runs")
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    assert all(alive(pid) for pid in pids)
    cluster.muster("cancel", "--wait", job)
    assert wait(cluster, job) == 121
    assert [pid for pid in pids if alive(pid)] == []


def test_the_stop_signal_is_the_jobs_own(cluster: LocalCluster, tmp_path: Path) -> None:
    script = "trap 'echo saved > saved; exit 0' USR1; echo up > up; while true; do sleep 0.1; done"
    job = submit(cluster, tmp_path, run=script, stop={"signal": "USR1", "grace": "30s"})
    await_file(tmp_path / "up")
    cluster.muster("cancel", "--wait", job)
    assert (tmp_path / "saved").read_text() == "saved\n"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.root
def test_a_rank_that_the_kernel_killed_for_memory_is_reported_with_its_numbers(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The line is the job's own, in the kernel's words: of its own pid, and so no other's."""
    if not os.access("/dev/kmsg", os.W_OK | os.R_OK):
        pytest.skip("/dev/kmsg cannot be written")
    line = (
        "<4>Memory cgroup out of memory: Killed process $$ (python) total-vm:1kB, "
        "anon-rss:13631488kB, file-rss:0kB, shmem-rss:0kB"
    )
    job = submit(cluster, tmp_path, run=f'echo "{line}" > /dev/kmsg; kill -9 $$')
    assert wait(cluster, job) == 137
    cause = cluster.client().job(int(job)).attempts[-1].cause
    assert cause is not None
    assert cause.kind == "oom_killed"
    assert "(python) with 13.0 GiB resident, as its cgroup's limit was met" in cause.text

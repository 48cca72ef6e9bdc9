"""Retries: when, where and how often; real processes fail as their attempt says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.outcome import CauseCode
from tests.cluster.jobs import alive, await_file, await_running, submit, until, wait

# Notes where it runs, and ends as the file of its attempt says.
RUN = """
echo "$$ $MUSTER_NODE_NAMES" > "ran.$MUSTER_ATTEMPT.new"
mv "ran.$MUSTER_ATTEMPT.new" "ran.$MUSTER_ATTEMPT"
if [ -e "ends.$MUSTER_ATTEMPT" ]; then . "./ends.$MUSTER_ATTEMPT"; fi
"""


def begin(cluster: LocalCluster, folder: Path, ends: list[str], retry: dict[str, Any]) -> str:
    """A job whose attempts end of these commands, one after the other, and then well."""
    for number, command in enumerate(ends, 1):
        (folder / f"ends.{number}").write_text(f"{command}\n")
    return submit(cluster, folder, run=RUN, retry={"backoff": "0s", **retry})


@pytest.mark.parametrize(
    ("ends", "retry", "attempts", "code"),
    [
        (["exit 7", "exit 8"], {"user": 2}, 3, 0),
        (["exit 7", "exit 8"], {"user": 1, "infra": 9}, 2, 8),
        (["exit 42"], {"user": 3, "on_exit_codes": [42]}, 2, 0),
        (["exit 7"], {"user": 3, "on_exit_codes": [42]}, 1, 7),
        (["exit 93"], {"user": 3}, 1, 93),
        (["kill -SEGV $$"], {"user": 3, "never_on": ["segfault"]}, 1, 139),
        (["kill -SEGV $$"], {"user": 3, "never_on": ["OOM"]}, 2, 0),
    ],
    ids=("budget", "used up", "named", "not named", "93", "never on", "never on another"),
)
def test_programs_that_fail(
    cluster: LocalCluster,
    tmp_path: Path,
    ends: list[str],
    retry: dict[str, Any],
    attempts: int,
    code: int,
) -> None:
    job = begin(cluster, tmp_path, ends, retry)
    assert wait(cluster, job) == code
    assert len(cluster.client().job(int(job)).attempts) == attempts
    assert not (tmp_path / f"ran.{attempts + 1}").exists()


def test_two_budgets_and_the_guilty_node_is_left_out(cluster: LocalCluster, tmp_path: Path) -> None:
    """A shim that is killed is its node's fault; the program's failure after it is paid apart."""
    job = begin(cluster, tmp_path, ["exec sleep 10000", "exit 7"], {"infra": 1, "user": 1})
    pid, node = await_file(tmp_path / "ran.1").split()
    await_running(cluster, job)
    folder = cluster.root / "state" / node / "tasks" / f"{job}.1.0"
    os.kill(json.loads((folder / "shim.json").read_text())["pid"], signal.SIGKILL)
    assert wait(cluster, job) == 0
    assert not alive(int(pid))
    first, second, _ = cluster.client().job(int(job)).attempts
    assert first.cause is not None
    assert second.cause is not None
    assert (first.cause.code, first.cause.node) == (CauseCode.TASK_VANISHED, node)
    assert (second.cause.code, second.cause.exit_code) == (CauseCode.RANK_FAILED, 7)
    for number in (2, 3):
        assert await_file(tmp_path / f"ran.{number}").split()[1] != node


def test_three_tries_without_a_checkpoint_are_enough(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for number in range(1, 6):
        (tmp_path / f"ends.{number}").write_text(
            f"until [ -e go.{number} ]; do sleep 0.05; done; exit 7\n"
        )
    retry = {"user": 9, "backoff": "0s"}
    saved = str(tmp_path / "saved")
    job = submit(cluster, tmp_path, run=RUN, retry=retry, checkpoint_dir=saved)
    for number in range(1, 4):
        await_file(tmp_path / f"ran.{number}")
        await_running(cluster, job)
        (tmp_path / f"go.{number}").touch()
    assert wait(cluster, job) == 7
    view = cluster.client().job(int(job))
    assert len(view.attempts) == 3
    shown = " ".join(cluster.muster("show", job).stdout.split())
    assert f"no progress: 3 attempts wrote no checkpoint to {saved}" in shown


@pytest.mark.long
def test_a_drain_waits_for_a_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    for number in range(1, 5):
        (tmp_path / f"ends.{number}").write_text("until [ -e go ]; do sleep 0.05; done\n")
    job = submit(
        cluster,
        tmp_path,
        run=RUN,
        retry={"infra": 0, "backoff": "0s"},
        checkpoint_dir=str(saved),
        stop={"grace": "1s"},
    )
    pid, node = await_file(tmp_path / "ran.1").split()
    await_running(cluster, job)
    cluster.muster("node", "drain", node, "--reason", "new cable", "--after-checkpoint")
    assert alive(int(pid))
    assert not (tmp_path / "ran.2").exists()
    (saved / "step-100").write_text("weights")
    _, other = await_file(tmp_path / "ran.2").split()
    assert other != node
    assert not alive(int(pid))
    until(lambda: cluster.client().node(node).admin == "drained", "it is drained")
    await_running(cluster, job)
    assert "step-100" in cluster.muster("show", job).stdout
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    first, _ = cluster.client().job(int(job)).attempts
    assert first.cause is not None
    assert first.cause.code is CauseCode.DRAINED
    cluster.muster("node", "resume", node)

"""Any daemon may be killed: the job goes on, runs once, and nothing that it wrote is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from agent.logs.log_file import EMPTIED
from examples.local_cluster import Daemon, LocalCluster
from muster.protocol.states import JobState
from tests.cluster.jobs import alive, await_file, await_running, log_of, logs, submit, until, wait

# Counts to a hundred once it may; says who it is, so that a second run would show.
COUNT = """
echo $$ >> "pids.$MUSTER_NODE_RANK"
for i in $(seq 1 100); do
  echo "line $i"
  if [ "$i" = 50 ]; then until [ -e go ]; do sleep 0.05; done; fi
done
"""
WANTED = "".join(f"line {i}\n" for i in range(1, 101))


def victims(cluster: LocalCluster, who: str) -> list[Daemon]:
    agents = list(cluster.nodes.values())
    return {"coordinator": [cluster.coordinator], "agents": agents}.get(
        who, [cluster.coordinator, *agents]
    )


@pytest.mark.parametrize("who", ["coordinator", "agents", "all"])
def test_a_running_job_does_not_notice(own_cluster: LocalCluster, tmp_path: Path, who: str) -> None:
    job = submit(own_cluster, tmp_path, nodes=2, run=COUNT)
    for rank in (0, 1):
        await_file(tmp_path / f"pids.{rank}")
    for daemon in victims(own_cluster, who):
        daemon.kill()
    for daemon in victims(own_cluster, who):
        daemon.start()
    own_cluster.wait_for_nodes()
    await_running(own_cluster, job)
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    for rank in (0, 1):
        assert len((tmp_path / f"pids.{rank}").read_text().split()) == 1
        printed = logs(own_cluster, "--rank", str(rank), "--no-prefix", job).stdout
        assert printed == WANTED
    assert len(own_cluster.client().job(int(job)).attempts) == 1


def test_a_job_that_ends_while_both_daemons_are_dead(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(
        own_cluster, tmp_path, nodes=2, run=COUNT + "echo done > done.$MUSTER_NODE_RANK\nexit 9\n"
    )
    for rank in (0, 1):
        await_file(tmp_path / f"pids.{rank}")
    for daemon in victims(own_cluster, "all"):
        daemon.kill()
    (tmp_path / "go").touch()
    for rank in (0, 1):
        await_file(tmp_path / f"done.{rank}")
    for daemon in victims(own_cluster, "all"):
        daemon.start()
    assert wait(own_cluster, job) == 9
    for rank in (0, 1):
        assert len((tmp_path / f"pids.{rank}").read_text().split()) == 1
        printed = logs(own_cluster, "--rank", str(rank), "--no-prefix", job).stdout
        assert printed == WANTED


def test_waiting_jobs_still_wait(own_cluster: LocalCluster, tmp_path: Path) -> None:
    first = submit(own_cluster, tmp_path, nodes=2, run="until [ -e go ]; do sleep 0.05; done")
    waiting = [submit(own_cluster, tmp_path, run="true") for _ in range(5)]
    cancelled = waiting.pop()
    own_cluster.muster("cancel", cancelled)
    own_cluster.coordinator.kill()
    own_cluster.coordinator.start()
    own_cluster.wait_for_nodes()
    states = {j: own_cluster.client().job(int(j)).state for j in waiting}
    assert set(states.values()) == {JobState.QUEUED}
    assert own_cluster.client().job(int(cancelled)).state is JobState.CANCELLED
    (tmp_path / "go").touch()
    assert [wait(own_cluster, job) for job in (first, *waiting)] == [0] * 5


def test_a_cancel_is_carried_out_after_the_coordinators_death(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(own_cluster, tmp_path, nodes=2, run=COUNT, stop={"grace": "10s"})
    for rank in (0, 1):
        await_file(tmp_path / f"pids.{rank}")
    for agent in own_cluster.nodes.values():
        agent.kill()
    own_cluster.muster("cancel", job)
    own_cluster.coordinator.kill()
    for daemon in victims(own_cluster, "all"):
        daemon.start()
    assert wait(own_cluster, job) == 121
    until(lambda: own_cluster.survivors() == [], "no process of the job is left")


def test_a_coordinator_with_the_wrong_state_folder_harms_no_job(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(own_cluster, tmp_path, nodes=2, run=COUNT)
    for rank in (0, 1):
        await_file(tmp_path / f"pids.{rank}")
    right = own_cluster.coordinator
    right.kill()
    env = {**right.env, "MUSTER_COORDINATOR_STATE_DIR": str(tmp_path / "empty")}
    wrong = Daemon("wrong", right.argv, env, tmp_path / "wrong.log")
    wrong.start()
    refusals = [d.log for d in own_cluster.nodes.values()]
    until(lambda: all("of cluster" in log.read_text() for log in refusals), "both agents refuse")
    wrong.stop()
    right.start()
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    assert len(own_cluster.client().job(int(job)).attempts) == 1


def test_a_log_that_the_job_empties_goes_on_with_a_line_that_says_so(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    wait_for_go = "until [ -e go ]; do sleep 0.05; done"
    script = f"echo a1; echo a2; {wait_for_go}; echo b > /dev/stdout; echo c"
    job = submit(own_cluster, tmp_path, run=script)
    seen = own_cluster.root.rglob
    until(lambda: any(p.read_bytes() == b"a1\na2\n" for p in seen("stdout.0")), "both stored")
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    printed = logs(own_cluster, job).stdout
    assert printed == "a1\na2\n" + EMPTIED.decode() + "b\nc\n"


def test_unread_output_of_a_killed_shim_is_delivered_by_the_next_agent(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(own_cluster, tmp_path, run=COUNT, retry={"infra": 0})
    await_file(tmp_path / "pids.0")
    (task,) = own_cluster.client().job(int(job)).attempts[0].tasks
    agent = own_cluster.nodes[task.node]
    stored = own_cluster.root.rglob
    until(lambda: any(p.read_bytes().endswith(b"50\n") for p in stored("stdout.0")), "half of it")
    agent.kill()
    (tmp_path / "go").touch()
    folder = own_cluster.root / "state" / task.node / "tasks" / f"{job}.1.0"
    until(lambda: (folder / "logs" / "rank-0.stdout").read_text() == WANTED, "all is written")
    # Its record may be there by now, and then it has lost nothing: this is one that has none.
    shim = json.loads((folder / "shim.json").read_text())["pid"]
    os.kill(shim, signal.SIGKILL)
    until(lambda: not alive(shim), "the shim is dead")
    (folder / "exit.json").unlink(missing_ok=True)
    agent.start()
    assert wait(own_cluster, job) != 0
    assert log_of(own_cluster, job) == WANTED
    until(lambda: not folder.exists(), "nothing of it is left on the node")

"""`kill -9` of any daemon, or of all at once, in every phase of a job, with real daemons.

Each phase is held open by something that the test lets go of: a file that set-up or a rank waits
for, or a stopped process. A job's ranks write who they are into a file of their attempt: a second
run would show, and so would a process of an earlier attempt that still lived.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.shim.system.cgroup import FOLDER, own_cgroup, prefix_of
from agent.shim.system.syscalls import processes
from examples.local_cluster import Daemon, LocalCluster
from muster.client.log_stream import LogQuery
from muster.http.views import JobView, LogRecord
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import until

NODES = ("node-1", "node-2")
WHO = ("coordinator", "agents", "shims", "fork servers", "all")

# Set-up waits on request. Rank 0 of the gang is the launcher, on whichever node.
SETUP = """
echo $$ >> setup.$MUSTER_ATTEMPT.$MUSTER_NODE_RANK
if [ -e hold-setup.$MUSTER_NODE_RANK ]; then until [ -e go-setup ]; do sleep 0.02; done; fi
"""
# A rank that finds one of an attempt before its own alive says so.
RUN = """
trap 'echo asked >> asked.$MUSTER_NODE_RANK' TERM
echo $$ >> ran.$MUSTER_ATTEMPT.$MUSTER_NODE_RANK
for file in ran.*; do
  case $file in ran.$MUSTER_ATTEMPT.*) continue;; esac
  for pid in $(cat $file); do
    if grep -qs '^State:[[:space:]][A-WY]' /proc/$pid/status; then echo $pid >> overlap; fi
  done
done
seq 1 500
echo up >> up.$MUSTER_ATTEMPT.$MUSTER_NODE_RANK
until [ -e go ]; do sleep 0.02 || :; done
seq 501 1000
echo done >> done.$MUSTER_NODE_RANK
"""
WANTED = "".join(f"{i}\n" for i in range(1, 1001))


@dataclass
class Story:
    """A job on both nodes, in a folder of its own, and the processes stopped to hold its phase
    open."""

    cluster: LocalCluster
    folder: Path
    job: int = 0
    stopped: list[int] = field(default_factory=list)

    def submit(self, **given: object) -> None:
        spec = {
            "name": "subject",
            "launcher": "none",
            "nodes": 2,
            "workdir": str(self.folder),
            "setup": SETUP,
            "run": RUN,
            "stop": {"grace": "60s"},
            "retry": {"infra": 3, "backoff": "0s"},
            **given,
        }
        self.job = self.cluster.client().submit(spec).id

    def view(self) -> JobView:
        return self.cluster.client().job(self.job)

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def wrote(self, name: str) -> bool:
        path = self.folder / name
        return path.exists() and path.read_text().endswith("\n")

    def await_files(self, *names: str) -> None:
        for name in names:
            until(lambda name=name: self.wrote(name), f"{name} written")  # type: ignore[misc]

    def await_running(self) -> None:
        self.await_files("up.1.0", "up.1.1")
        until(lambda: self.view().state is JobState.RUNNING, "the job runs")

    def stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.stopped.append(pid)

    def let_go(self) -> None:
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped.clear()

    def node_of(self, rank: int) -> str:
        return self.view().attempts[-1].tasks[rank].node

    def task_folder(self, rank: int) -> Path:
        folder = self.cluster.root / "state" / self.node_of(rank) / "tasks"
        return folder / f"{self.job}.{len(self.view().attempts)}.{rank}"

    def shim(self, rank: int) -> int:
        return int(json.loads((self.task_folder(rank) / "shim.json").read_text())["pid"])

    def log(self, rank: int, attempt: int) -> str:
        """All that can be read of what a rank has printed."""
        query = LogQuery(rank=rank, stream="stdout", attempt=attempt)
        records = self.cluster.client().logs(self.job, query)
        return "".join(record.data or "" for record in records if isinstance(record, LogRecord))

    def task_state(self, rank: int) -> str:
        return self.view().attempts[-1].tasks[rank].state.value


def processes_named(cluster: LocalCluster, name: str) -> list[int]:
    """Return the pids of this cluster's processes with that process name."""
    mark = str(cluster.root).encode()
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{pid}")
            named = (folder / "comm").read_text() == f"{name}\n"
            if named and mark in (folder / "environ").read_bytes():
                found.append(pid)
    return found


# --- the phases ----------------------------------------------------------------------------------


def queued(story: Story) -> None:
    """It waits for a node that is drained."""
    story.cluster.client().drain("node-2", "the test")
    story.submit()
    assert story.view().state is JobState.QUEUED


def preparing(story: Story) -> None:
    story.touch("hold-setup.1")
    story.submit()
    story.await_files("setup.1.0", "setup.1.1")


def arranging(story: Story) -> None:
    """All are prepared, and the agent of rank 0 has not received the plan."""
    story.touch("hold-setup.1")
    story.submit()
    until(lambda: bool(story.view().attempts), "placed")
    until(lambda: story.task_state(0) == "prepared", "rank 0 is prepared")
    story.stop(story.cluster.nodes[story.node_of(0)].pid)
    story.touch("go-setup")
    until(lambda: story.view().attempts[-1].state == "arranging", "the gang is arranged")


def starting(story: Story) -> None:
    """Rank 0 runs, and the shim of rank 1 has not received its start."""
    story.touch("hold-setup.0")
    story.submit()
    until(lambda: bool(story.view().attempts), "placed")
    until(lambda: story.task_state(1) == "prepared", "rank 1 is prepared")
    story.stop(story.shim(1))
    story.touch("go-setup")
    story.await_files("up.1.0")


def running(story: Story) -> None:
    story.submit()
    story.await_running()


def stopping(story: Story) -> None:
    """Both have been asked to end, and do not yet."""
    story.submit()
    story.await_running()
    story.cluster.client().cancel(story.job)
    story.await_files("asked.0", "asked.1")
    assert story.view().state is JobState.STOPPING


def collecting(story: Story) -> None:
    """Both have ended, their records are on disk, and no daemon has read them."""
    story.submit()
    story.await_running()
    records = [story.task_folder(rank) / "exit.json" for rank in (0, 1)]
    for daemon in (story.cluster.coordinator, *story.cluster.nodes.values()):
        story.stop(daemon.pid)
    story.touch("go")
    until(lambda: all(record.exists() for record in records), "both records written")


PHASES: tuple[Callable[[Story], None], ...] = (
    queued,
    preparing,
    arranging,
    starting,
    running,
    stopping,
    collecting,
)


def kill(story: Story, who: str) -> list[Daemon]:
    """SIGKILL; returns the daemons that somebody has to start again. Those go first: they would
    begin another attempt while the rest of all is still being killed."""
    cluster = story.cluster
    agents = list(cluster.nodes.values())
    daemons = {
        "coordinator": [cluster.coordinator],
        "agents": agents,
        "all": [cluster.coordinator, *agents],
    }.get(who, [])
    for daemon in daemons:
        daemon.kill()
    by_name = {
        "shims": ("muster-shim",),
        "fork servers": ("muster-forksrv",),
        "all": ("muster-shim", "muster-forksrv"),
    }
    for name in by_name.get(who, ()):
        for pid in processes_named(cluster, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return daemons


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("kills"), agents=2, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def cgroups(shims: set[str]) -> list[str]:
    """Return the cgroups of these shims."""
    folder = Path(own_cgroup() or "/none") / FOLDER
    return [path.name for path in folder.glob("shim-*") if path.name.startswith(tuple(shims))]


def folders(cluster: LocalCluster) -> list[Path]:
    """Return the folders of tasks on all nodes."""
    return [path for node in NODES for path in (cluster.root / "state" / node / "tasks").iterdir()]


@pytest.mark.fault(1, 2, 3, 4, 5, 8, 10)
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_kill_9(
    cluster: LocalCluster, tmp_path: Path, phase: Callable[[Story], None], who: str
) -> None:
    story = Story(cluster, tmp_path)
    phase(story)
    shims = {prefix_of(pid) for pid in processes_named(cluster, "muster-shim")}
    killed = kill(story, who)
    for daemon in killed:
        daemon.start()
    story.let_go()
    cluster.wait_for_nodes()
    if phase is queued:
        assert story.view().state is JobState.QUEUED
        cluster.client().resume("node-2", check=False)
    story.touch("go-setup")
    story.touch("go")
    ended = cluster.client().wait(story.job, timeout_s=300)

    # A task without its shim is not "still running": it has failed, and another attempt is made.
    again = who in ("shims", "all") and phase in (preparing, arranging, starting, running)
    attempts = story.view().attempts
    if who in ("shims", "all") and (tmp_path / "up.1.0").exists():
        # Output from before the kill can be read, although no process was left to report it.
        assert story.log(0, attempt=1).startswith("1\n2\n")
        assert story.log(0, attempt=1).count("\n500\n") == 1
    assert len(attempts) == (2 if again else 1), [
        attempt.cause and attempt.cause.text for attempt in attempts
    ]
    if again:
        assert attempts[0].cause is not None
        assert attempts[0].cause.code is CauseCode.TASK_VANISHED
    assert ended.state is (JobState.CANCELLED if phase is stopping else JobState.SUCCEEDED)
    assert ended.exit_code == (121 if phase is stopping else 0)

    # Each start of a rank has left a line: no attempt has run twice, and no two at a time.
    for ran in tmp_path.glob("ran.*"):
        assert ran.read_text().count("\n") == 1, f"{ran.name} twice"
    assert not story.wrote("overlap")
    if not (phase is stopping and who in ("shims", "all")):
        for rank in (0, 1):
            assert story.wrote(f"done.{rank}")
            assert story.log(rank, len(attempts)) == WANTED

    until(lambda: cluster.survivors() == [], "no process of the job is left")
    until(lambda: folders(cluster) == [], "no folder of a task is left")
    if who in ("shims", "all"):
        until(lambda: cgroups(shims) == [], "no cgroup of a killed shim is left")

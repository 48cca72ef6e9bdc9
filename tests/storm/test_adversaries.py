"""Each adversary of the storm once, on one cluster whose jobs run as a user without rights.

Beside each an honest user's job runs, and `Watch` looks on.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.client.tail import LogQuery
from muster.protocol.http import LogRecord
from muster.protocol.ids import TaskId
from muster.protocol.messages import Heartbeat, Report, TaskReport
from muster.protocol.states import ENDED_STATES, JobState, TaskState
from tests.storm import greed, lies
from tests.storm.cluster import DISK_BYTES, StormCluster
from tests.storm.rogue import Rogue, Rogues
from tests.storm.watch import Watch, at_rest, burning

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

VICTIM, OTHER = "node-1", "node-2"
PATIENCE_S = 40.0
CANCEL_S = 15.0
REST_WITHIN_S = 10.0
LINES = 40
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.02; done"


class Grounds(StormCluster):
    """Jobs run as `nobody`, who may not pass through pytest's own folders. Nodes are said to have
    a GPU, as only there the agent reads NCCL's lines."""

    def _place(self, number: int) -> dict[str, object]:
        more = {"run_as": "nobody", "allow_root_jobs": False, "gpus": 1}
        return {**super()._place(number), **more}

    def _init(self) -> None:
        """Logs leave room to the journal, whose disk is theirs, too."""
        super()._init()
        path = self.root / "config" / "coordinator.yaml"
        settings = yaml.safe_load(path.read_text())
        settings["job_logs"] = {**settings["job_logs"], "free_bytes_min": DISK_BYTES // 4}
        path.write_text(yaml.safe_dump(settings, sort_keys=False))

    def _unmount(self, disk: Path) -> None:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@dataclass
class Scene:
    """The cluster, a machine from which strangers speak, and folders for jobs."""

    cluster: StormCluster
    ground: Machine
    rogues: Rogues
    root: Path
    number: int = 0

    def lie(self, kind: str, *nodes: str) -> tuple[int, Path]:
        """Submit such a job for these nodes, for one if they are not named; its id and folder."""
        self.number += 1
        folder = self.root / f"{self.number:03d}"
        spec = lies.job(kind, folder, nodes or [VICTIM])
        return self.cluster.client().submit(spec).id, folder

    def honest(self, run: str = COUNT, nodes: int = 1, **more: Any) -> int:
        """Submit a job that means no harm, on the other node where one is enough."""
        where = {} if nodes > 1 else {"placement": {"include": [OTHER]}}
        spec = {"name": "honest", "launcher": "none", "nodes": nodes, "run": ["sh", "-c", run]}
        return self.cluster.client().submit({**spec, "workdir": "/", **where, **more}).id

    def whole(self, job: int) -> None:
        """It succeeds, and all that it wrote arrives."""
        client = self.cluster.client()
        assert client.wait(job, PATIENCE_S).state is JobState.SUCCEEDED, client.job(job).reason
        wanted = [f"line {n + 1}" for n in range(LINES)]
        until(lambda: self.log(job).split("\n")[:-1] == wanted, f"the log of job {job} is whole")

    def log(self, job: int) -> str:
        """All that has arrived of it by now."""
        records = self.cluster.client().logs(job, LogQuery())
        said = [r.data for r in records if isinstance(r, LogRecord) and r.data is not None]
        return "".join(said)

    def cancelled(self, job: int) -> None:
        """It ends when its user says so, and soon."""
        client = self.cluster.client()
        client.cancel(job)
        state = client.wait(job, CANCEL_S).state
        assert state in ENDED_STATES, f"{CANCEL_S:g} s after its cancel job {job} is {state.value}"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever happens inside, an honest job is served, and afterwards all is at rest."""
        with Watch(self.cluster) as watch:
            honest = self.honest()
            yield
            self.whole(honest)
        assert watch.violations() == []
        self.rests()

    def rests(self) -> None:
        found: list[str] = []

        def rests() -> bool:
            found[:] = at_rest(self.cluster)
            return not found

        with contextlib.suppress(TimeoutError):
            until(rests, "the cluster is at rest", REST_WITHIN_S)
        assert found == []


def until(reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something that sends no event."""
    deadline = time.monotonic() + patience_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {patience_s:g} s: {what}")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def ground() -> Iterator[Scene]:
    if why := missing():
        pytest.skip(why)
    root = Path(tempfile.mkdtemp(prefix="muster-adversaries-"))
    root.chmod(0o755)
    try:
        cluster = Grounds(root / "cluster", agents=2)
        with cluster:
            machine = cluster.rig.add("stranger")
            with Rogues(cluster, machine) as rogues:
                yield Scene(cluster, machine, rogues, root / "jobs")
        assert cluster.leftovers() == []
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def scene(ground: Scene) -> Iterator[Scene]:
    """With all daemons up and nothing to do, whatever the test before has left."""
    yield ground
    cluster = ground.cluster
    for daemon in (cluster.coordinator, *cluster.nodes.values()):
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()
    cluster.wait_for_nodes()
    client = cluster.client()
    waiting = [job.id for job in client.all_jobs().jobs if job.state not in ENDED_STATES]
    greed.cancels(cluster, waiting)
    for job in waiting:
        client.wait(job, PATIENCE_S)


# --- jobs that lie to their shim ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["garbage", "huge", "silent", "twice", "ghosts"])
def test_a_launcher_that_lies_harms_its_own_job_alone(scene: Scene, kind: str) -> None:
    with scene.watched():
        job, folder = scene.lie(kind)
        client = scene.cluster.client()
        until(
            lambda: bool(lies.told(folder)) or client.job(job).state in ENDED_STATES,
            f"{kind} has lied",
        )
        scene.whole(scene.honest())
        until(lambda: burning(scene.cluster) == [], "no daemon is busy with a lie", REST_WITHIN_S)
        scene.cancelled(job)


# --- agents that lie within their rights ----------------------------------------------------------


def test_streams_without_end_and_offsets_that_jump_harm_nobody(scene: Scene) -> None:
    rogue = scene.rogues.join(Rogue("streamer", scene.ground.address))
    try:
        with scene.watched():
            spec = {"name": "bait", "launcher": "none", "run": ["true"]}
            where = {"placement": {"include": [rogue.name]}, "retry": {"infra": 0}}
            job = scene.cluster.client().submit({**spec, **where}).id
            scene.rogues.await_task(rogue)
            scene.rogues.flood(rogue)
            scene.whole(scene.honest())
            scene.cancelled(job)
    finally:
        scene.rogues.leave(rogue)


def test_what_an_agent_says_at_and_beyond_every_bound_harms_nobody(scene: Scene) -> None:
    day_s = 86400.0
    labels = [{f"k{n}": "v" * size for n in range(count)} for count, size in ((64, 63), (9000, 90))]
    with scene.watched():
        for number, some in enumerate(labels):
            rogue = Rogue(f"wordy-{number}", scene.ground.address, inventory={"labels": some})
            scene.rogues.frames(rogue, [])
        nobodys = [TaskId(f"{n}.1.0") for n in range(100_000, 100_500)]
        reports: list[Report] = [
            *(TaskReport(task, TaskState.STARTED) for task in nobodys),
            *(Heartbeat(1e300 * n, wall_s=time.time() + 400 * day_s * n) for n in range(-50, 50)),
        ]
        scene.rogues.frames(Rogue("liar", scene.ground.address), reports)
        tasks = tuple(TaskReport(task, TaskState.CLEANED) for task in nobodys)
        scene.rogues.frames(Rogue("owner", scene.ground.address, fields={"tasks": tasks}), [])
        late = {"wall_s": time.time() - 400 * day_s, "epoch_seen": 1 << 60}
        scene.rogues.frames(Rogue("late", scene.ground.address, fields=late), [])


def test_agents_that_come_and_go_without_end_harm_nobody(scene: Scene) -> None:
    with scene.watched():
        assert scene.rogues.knock(300) > 0


# --- users who are greedy -------------------------------------------------------------------------


def test_a_thousand_submits_harm_nobody(scene: Scene) -> None:
    with scene.watched():
        jobs = greed.submits(scene.cluster, 1000)
        assert len(jobs) == 1000
        there = {job.id for job in scene.cluster.client().all_jobs().jobs}
        assert set(jobs) <= there
        greed.cancels(scene.cluster, jobs)


def test_lists_large_specs_and_slow_readers_harm_nobody(scene: Scene) -> None:
    with scene.watched():
        job = scene.honest("yes line | head -c 20000000; sleep 5", retry={"infra": 0})
        with greed.Readers(scene.cluster, job):
            greed.big_specs(scene.cluster, 5)
            greed.lists(scene.cluster, 80)
        scene.cancelled(job)

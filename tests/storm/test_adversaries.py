"""Each adversary of the storm once, on one cluster whose jobs run as a user without rights.

Beside each an honest user's job runs, and `Watch` looks on.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
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
from muster.client.log_stream import LogQuery
from muster.http.views import LogRecord
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Heartbeat, Report, TaskReport
from muster.protocol.states import ENDED_STATES, JobState, TaskState
from tests.storm import accidents, greed, lies
from tests.storm.cluster import DISK_BYTES, StormCluster
from tests.storm.rogue import Rogue, Rogues
from tests.storm.watch import Watch, at_rest, burning

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(900)]

VICTIM, OTHER = "node-1", "node-2"
PATIENCE_S = 180.0
CANCEL_S = 120.0
REST_WITHIN_S = 120.0
STORED_S = 120.0
LINES = 40
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.02; done"
SECRET = "a-line-of-another-owner"
NAS = "nas01"
NAS_ADDRESS = "10.77.0.250"


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
        """Check that an honest job is served meanwhile, and that all is at rest afterwards."""
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
    if waiting:  # Some may have a task on a stranger that is gone: only an operator ends that.
        for node in client.nodes().nodes:
            if node.name not in cluster.nodes and (node.job is not None or node.jobs):
                client.declare_lost(node.name)
    for job in waiting:
        assert client.wait(job, PATIENCE_S).state in ENDED_STATES, client.job(job).reason


# --- jobs that lie to their shim ------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["endless", "garbage", "huge", "silent", "twice", "early", "ghosts"]
)
def test_a_launcher_that_lies_harms_its_own_job_alone(scene: Scene, kind: str) -> None:
    with scene.watched():
        job, folder = scene.lie(kind)
        client = scene.cluster.client()
        until(
            lambda: bool(lies.notes(folder)) or client.job(job).state in ENDED_STATES,
            f"{kind} has lied",
        )
        scene.whole(scene.honest())
        if kind == "endless":
            (given,) = lies.notes(folder)
            assert given.startswith("given 1,"), f"its plan has one rank: {given}"
            line = f"a line of rank {given.rpartition(' ')[2]}\n"
            until(lambda: line in scene.log(job), f"what was written arrives: {given}", STORED_S)
        until(lambda: burning(scene.cluster) == [], "no daemon is busy with a lie", REST_WITHIN_S)
        scene.cancelled(job)


def test_a_job_whose_streams_have_no_end_leaves_nothing_to_a_new_coordinator(scene: Scene) -> None:
    with scene.watched():
        job, folder = scene.lie("endless")
        until(lambda: bool(lies.notes(folder)), "it has lied")
        scene.cluster.coordinator.kill()
        scene.cluster.coordinator.start()
        accidents.await_answer(scene.cluster)
        scene.cancelled(job)


def test_nobody_sees_the_stack_of_a_process_that_is_not_the_jobs(scene: Scene) -> None:
    job, folder = scene.lie("pids")
    client = scene.cluster.client()
    own = ""
    until(lambda: len(lies.notes(folder)) > 1, "it has lied")
    until(lambda: client.job(job).state is JobState.RUNNING, "it runs")
    own = lies.notes(folder)[0].removeprefix("own ")
    seen: dict[int, int] = {}

    def shown() -> bool:
        for rank in client.stacks(job).ranks:
            if rank.main:
                seen[rank.rank] = rank.pid
        return 0 in seen

    until(shown, "the stack of its own process is shown")
    scene.cancelled(job)
    assert seen == {0: int(own)}, f"of {lies.notes(folder)} these ranks have stacks: {seen}"
    scene.rests()


def test_root_reads_no_file_of_another_owner_for_a_job(scene: Scene) -> None:
    job, folder = scene.lie("thief", VICTIM, OTHER)  # of one node alone nothing is watched
    until(lambda: bool(lies.notes(folder)), "it waits")
    scratch = Path(lies.notes(folder)[0].removeprefix("waits "))
    secret = scratch / "secret.new"
    secret.write_text(f"host:1:1 [0] NCCL INFO {SECRET}\n" * 20)
    secret.chmod(0o600)
    secret.rename(scratch / "secret")
    until(lambda: "moved" in lies.notes(folder), "it has moved the file")
    scene.cancelled(job)
    scene.rests()
    assert SECRET not in scene.log(job)


# --- agents that lie within their rights ----------------------------------------------------------


@pytest.mark.parametrize("name", ["coordinator", "mirror.example.org", "localhost", "10.1.2.3"])
def test_a_node_is_not_called_what_is_anothers_name(scene: Scene, name: str) -> None:
    rogue = scene.rogues.join(Rogue(name, scene.ground.address))
    try:
        assert rogue.refused is not None, f"{name!r} was let in as a node"
    finally:
        scene.rogues.leave(rogue)


@pytest.mark.parametrize(
    "strangers",
    [{NAS: ""}, {"stranger-1": NAS, "stranger-2": "mirror.example.org"}],
    ids=("name", "hostnames"),
)
def test_no_name_of_a_hosts_file_leads_elsewhere(scene: Scene, strangers: dict[str, str]) -> None:
    """The site's name server knows these names, and a gang has strangers among its nodes."""
    rogues = [Rogue(name, scene.ground.address, host) for name, host in strangers.items()]
    names = {NAS, *strangers.values()} - {""}
    found: set[str] = set()
    victims = [scene.cluster.machines[node] for node in (VICTIM, OTHER)]
    with names_served(victims, {NAS: NAS_ADDRESS, "mirror.example.org": NAS_ADDRESS}):
        for rogue in rogues:
            scene.rogues.join(rogue)
        try:
            inside = [rogue for rogue in rogues if rogue.refused is None]
            if not inside:
                return
            # The strangers' tasks never end at their limit. The coordinator ends them 30 s later.
            nodes = 2 + len(inside)
            job = scene.honest("sleep 1", nodes=nodes, retry={"infra": 0}, time_limit="5s")
            client = scene.cluster.client()

            def over() -> bool:
                for machine in victims:
                    words = set(machine.hosts().split())
                    found.update(words & names)
                return client.job(job).state in ENDED_STATES

            until(over, "the gang has come to its end")
        finally:
            for rogue in rogues:
                scene.rogues.leave(rogue)
    assert not found, f"in the hosts file of a peer {found} led to {scene.ground.address}"
    scene.rests()


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


def test_reports_at_and_beyond_every_bound_do_no_harm(scene: Scene) -> None:
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


@pytest.mark.parametrize("kind", list(lies.FLOODS))
def test_a_job_that_writes_without_end_leaves_room_for_others(scene: Scene, kind: str) -> None:
    with scene.watched():
        job, _ = scene.lie(kind)
        client = scene.cluster.client()
        until(lambda: client.job(job).state in {JobState.RUNNING, *ENDED_STATES}, "it runs")
        # By then it has written more than the disk of the logs holds, as far as it is let.
        for _ in range(2):
            scene.whole(scene.honest())
        scene.cancelled(job)
        scene.whole(scene.honest())


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


def test_nobody_without_rights_keeps_an_agent_from_its_machine(scene: Scene) -> None:
    agent = scene.cluster.nodes[VICTIM]
    log = agent.log.stat().st_size

    def connected() -> bool:
        """In this life of it."""
        assert agent.process is not None
        assert agent.process.poll() is None, f"{has}; the agent: {agent.tail(3)}"
        return b"welcome" in agent.log.read_bytes()[log:]

    with accidents.squatted(scene.cluster, VICTIM) as has:
        assert has.startswith("holds ")
        agent.start()
        until(connected, "the agent is back")


# --- accidents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", accidents.DAMAGES, ids=lambda damage: damage.__name__)
def test_no_acknowledged_job_is_lost_without_a_word(
    scene: Scene, damage: Callable[[Path], None]
) -> None:
    jobs = greed.submits(scene.cluster, 80)
    assert accidents.damaged(scene.cluster, damage, jobs) == []


def test_a_clock_that_is_wrong_once_removes_nothing(scene: Scene) -> None:
    job = scene.honest()
    scene.whole(job)
    with accidents.ahead(scene.cluster, 40.0):
        scene.whole(scene.honest())
    scene.whole(job)


@contextmanager
def names_served(machines: list[Machine], names: dict[str, str]) -> Iterator[None]:
    """The name server of these machines knows these names, and no other."""
    servers: list[socket.socket] = []
    threads: list[threading.Thread] = []
    for machine in machines:
        with machine.network():
            servers.append(server := socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        server.bind(("127.0.0.1", 53))
        threads.append(thread := threading.Thread(target=_serve, args=(server, names)))
        thread.start()
    try:
        yield
    finally:
        for machine, thread in zip(machines, threads, strict=True):
            with machine.network(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", 53))
            thread.join()
        for server in servers:
            server.close()


def _serve(server: socket.socket, names: dict[str, str]) -> None:
    """Until somebody sends nothing."""
    while True:
        query, peer = server.recvfrom(512)
        if not query:
            return
        labels: list[str] = []
        at = 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += query[at] + 1
        question = query[12 : at + 5]
        address = names.get(".".join(labels).lower())
        answers = int(address is not None and question[-4:-2] == b"\0\1")
        flags = 0x8180 if address is not None else 0x8183
        head = query[:2] + struct.pack(">5H", flags, 1, answers, 0, 0)
        body = b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 1, 4) if answers else b""
        body += socket.inet_aton(address) if answers and address else b""
        server.sendto(head + question + body, peer)

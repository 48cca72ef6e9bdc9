"""A node that refuses, for each reason: nothing starts, nothing stays, others are tried."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.http.views import JobView
from muster.protocol.states import JobState
from tests.cluster.jobs import await_running, log_of, submit, until, wait

pytestmark = pytest.mark.root

CULPRIT = "node-2"
RETRY = {"infra": 3, "backoff": "1s"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[NamespaceCluster]:
    """Four nodes: a pair that fails leaves another pair."""
    if why := missing():
        pytest.skip(why)
    # One node is at fault in test after test, and its agent is restarted for each.
    env = {
        "MUSTER_COORDINATOR_QUARANTINE_JOBS": "0",
        "MUSTER_COORDINATOR_QUARANTINE_RESTARTS": "0",
    }
    # pytest's own folders let no other user pass.
    with tempfile.TemporaryDirectory(prefix="muster-partial-") as name:
        Path(name).chmod(0o711)
        made = NamespaceCluster(Path(name), agents=4, env=env)
        with made:
            yield made
        until(lambda: made.leftovers() == [], "no process of the cluster is left")


@dataclass
class Ground:
    """The prerequisites of a job, equal on every node until a test spoils one."""

    cluster: NamespaceCluster
    folder: Path
    measured: Callable[[int, float], None]

    def hide(self, path: Path, node: str = CULPRIT) -> contextlib.AbstractContextManager[None]:
        """An empty folder in the place of this one, on that node alone."""
        return self._mounted(node, path, "-t", "tmpfs", "none")

    def replace(self, path: Path, script: str) -> contextlib.AbstractContextManager[None]:
        """Another program in the place of this one, on the culprit alone."""
        other = self.folder / f"other-{path.name}"
        other.write_text(script)
        other.chmod(0o755)
        return self._mounted(CULPRIT, path, "--bind", str(other))

    @contextlib.contextmanager
    def _mounted(self, node: str, path: Path, *what: str) -> Iterator[None]:
        machine = self.cluster.machines[node]
        machine.exec("mount", *what, str(path))
        try:
            yield
        finally:
            machine.exec("umount", "-l", str(path))

    @contextlib.contextmanager
    def configured(self, node: str, **settings: Any) -> Iterator[None]:
        """The agent of a node with other settings, for a while."""
        file = self.cluster.root / "config" / f"{node}.yaml"
        before = file.read_text()
        with self.away(node):
            file.write_text(yaml.safe_dump({**yaml.safe_load(before), **settings}))
        try:
            yield
        finally:
            with self.away(node):
                file.write_text(before)

    @contextlib.contextmanager
    def away(self, node: str) -> Iterator[None]:
        """The agent of a node is not there."""
        agent = self.cluster.nodes[node]
        agent.stop()
        until(lambda: self._link(node) != "connected", f"{node} away")
        try:
            yield
        finally:
            agent.start()
            until(lambda: self._link(node) == "connected", f"{node} back")

    def _link(self, node: str) -> str:
        return next(n.link for n in self.cluster.client().nodes().nodes if n.name == node)


@pytest.fixture
def ground(
    cluster: NamespaceCluster, tmp_path: Path, measured: Callable[[int, float], None]
) -> Ground:
    return Ground(cluster, tmp_path, measured)


def rolled_back(ground: Ground, culprit: str = CULPRIT, **job: Any) -> JobView:
    """Run a job of two nodes that one of them spoils: it does well on others, and nothing of the
    first attempt is left. Returns the view."""
    cluster = ground.cluster
    hosts = {name: machine.hosts() for name, machine in cluster.machines.items()}
    ran = ground.folder / "ran"
    ran.mkdir()
    spec = {"nodes": 2, "run": f'echo >> {ran}/"$MUSTER_ATTEMPT"', "retry": RETRY, **job}
    number = submit(cluster, ground.folder, **spec)
    assert wait(cluster, number) == 0, cluster.muster("show", number).stdout
    view = cluster.client().job(int(number))
    first, *more = view.attempts
    assert first.cause is not None
    assert culprit in {task.node for task in first.tasks}
    assert first.cause.node == culprit, first.cause
    assert f"{culprit} refused: " in first.cause.text
    assert culprit not in {task.node for task in more[-1].tasks}
    assert not (ran / "1").exists(), "a program of the first attempt has run"
    for name, machine in cluster.machines.items():
        await_empty(cluster.root / "state" / name / "tasks")
        assert machine.hosts() == hosts[name]
    until(lambda: cluster.survivors() == [], "no process of a job")
    assert first.closed_at is not None
    steps = [step.at for step in view.timeline if "refused: " in step.text]
    took_s = (first.closed_at - steps[0]).total_seconds()
    print(f"rolled back in {took_s * 1000:.0f} ms: {first.cause.text}")
    ground.measured(49, took_s)
    return view


def await_empty(folder: Path) -> None:
    until(lambda: list(folder.iterdir()) == [], f"nothing in {folder}")


def refusal(view: JobView) -> str | None:
    cause = view.attempts[0].cause
    return None if cause is None else cause.refusal


def test_no_folder(ground: Ground) -> None:
    work = ground.folder / "above" / "work"
    work.mkdir(parents=True)
    with ground.hide(work.parent):
        view = rolled_back(ground, workdir=str(work))
    assert refusal(view) == "no_folder"


def test_a_setup_that_fails_there(ground: Ground) -> None:
    data = ground.folder / "data"
    data.mkdir()
    (data / "set").touch()
    with ground.hide(data):
        view = rolled_back(ground, setup=f"ls {data}/set")
    assert refusal(view) == "setup_failed"
    cause = view.attempts[0].cause
    assert cause is not None
    assert "No such file or directory" in cause.tail
    # The others were ready or on their way, and got no command but the cleanup.
    shown = ground.cluster.muster("show", str(view.id)).stdout
    assert "refused: `setup` exited with code" in shown


def test_a_node_that_would_refuse_every_job_gets_none(ground: Ground) -> None:
    state = ground.cluster.root / "state"
    before = state.stat().st_mode
    # The jobs of the others run as root, whom it does not stop.
    state.chmod(0o700)
    with contextlib.ExitStack() as stack:
        stack.callback(state.chmod, before)
        stack.enter_context(ground.configured(CULPRIT, allow_root_jobs=False))
        shown = ground.cluster.muster("nodes").stdout
        assert "refuses every job: users, whom jobs run as, cannot enter" in shown
        number = submit(ground.cluster, ground.folder, nodes=3, run="true", retry=RETRY)
        assert wait(ground.cluster, number) == 0
        (attempt,) = ground.cluster.client().job(int(number)).attempts
        assert CULPRIT not in {task.node for task in attempt.tasks}


def test_a_user_that_has_gone(ground: Ground) -> None:
    passwd = ground.folder / "passwd"
    shutil.copy("/etc/passwd", passwd)
    with passwd.open("a") as file:
        file.write("trainer:x:4711:4711::/:/bin/sh\n")
    machine = ground.cluster.machines[CULPRIT]
    machine.exec("mount", "--bind", str(passwd), "/etc/passwd")
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(ground.configured(CULPRIT, run_as="trainer"))
            machine.exec("umount", "/etc/passwd")
            view = rolled_back(ground)
    finally:
        machine.exec("umount", "/etc/passwd", check=False)
    assert refusal(view) == "user_unknown"


def test_a_running_job_keeps_its_uid_whatever_becomes_of_its_user(ground: Ground) -> None:
    """Its user goes, and comes back as somebody else, under an agent that starts anew."""
    cluster, passwd = ground.cluster, ground.folder / "passwd"
    others = Path("/etc/passwd").read_text()
    passwd.write_text(f"{others}trainer:x:4711:4711::/:/bin/sh\n")
    machine = cluster.machines[CULPRIT]
    machine.exec("mount", "--bind", str(passwd), "/etc/passwd")
    there = {"workdir": "/", "placement": {"include": [CULPRIT]}, "retry": {"infra": 0}}
    script = "trap 'id -u; exit 0' USR1; echo $$; id -u; while :; do sleep 0.1; done"
    try:
        with ground.configured(CULPRIT, run_as="trainer"):
            job = submit(cluster, ground.folder, run=script, **there)
            await_running(cluster, job)
            until(lambda: len(_log_so_far(cluster, job)) == 2, "it is ready for its signal")
            pid, _ = _log_so_far(cluster, job)
            passwd.write_text(others)
            assert _uids(machine, pid) == {4711}
            passwd.write_text(f"{others}trainer:x:4712:4712::/:/bin/sh\n")
            with ground.away(CULPRIT):
                assert _uids(machine, pid) == {4711}
            assert _uids(machine, pid) == {4711}
            cluster.muster("signal", job, "USR1")
            assert wait(cluster, job) == 0
            assert log_of(cluster, job).split() == [pid, "4711", "4711"]
            after = submit(cluster, ground.folder, run="id -u", **there)
            assert wait(cluster, after) == 0
            assert log_of(cluster, after).split() == ["4712"]
    finally:
        machine.exec("umount", "/etc/passwd", check=False)


def _log_so_far(cluster: NamespaceCluster, job: str) -> list[str]:
    return cluster.muster("logs", "--no-prefix", job, check=False).stdout.split()


def _uids(machine: Machine, pid: str) -> set[int]:
    """Real, effective, saved and of the file system: what the kernel goes by."""
    (line,) = re.findall(r"(?m)^Uid:(.*)$", machine.exec("cat", f"/proc/{pid}/status").stdout)
    return {int(uid) for uid in line.split()}


def test_a_full_disk(ground: Ground) -> None:
    state = ground.cluster.root / "state" / CULPRIT
    machine = ground.cluster.machines[CULPRIT]
    with ground.away(CULPRIT):
        machine.exec("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(state))
    cluster = ground.cluster
    try:
        client = cluster.client()
        until(lambda: "is full" in " ".join(client.node(CULPRIT).warnings), "its disk is full")
        job = submit(cluster, ground.folder, run="true", nodes=2)
        assert wait(cluster, job) == 0
        (attempt,) = client.job(int(job)).attempts
        assert CULPRIT not in {task.node for task in attempt.tasks}
    finally:
        with ground.away(CULPRIT):
            machine.exec("umount", "-l", str(state))


def test_no_port_left(ground: Ground) -> None:
    with ground.configured("node-1", ports={"first": 25_001, "last": 25_002}):
        assert refusal(rolled_back(ground, culprit="node-1")) == "no_ports"


def test_a_machine_that_does_not_ask_its_hosts_file(ground: Ground) -> None:
    machine = ground.cluster.machines[CULPRIT]
    before = machine.read("/etc/nsswitch.conf")
    machine.write("/etc/nsswitch.conf", re.sub(r"(?m)^hosts:.*$", "hosts: dns", before))
    try:
        view = rolled_back(ground)
    finally:
        machine.write("/etc/nsswitch.conf", before)
    assert refusal(view) == "hosts_unresolved"
    cause = view.attempts[0].cause
    assert cause is not None
    assert "node-1" in cause.text
    assert "nsswitch.conf" in cause.text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (None, "no_python"),
        ('#!/bin/sh\nexec {python} -I -S "$@"\n', "no_torch"),
        ("#!/bin/sh\necho libpython3.so is missing >&2\nexit 5\n", "bootstrap_failed"),
    ],
)
def test_an_interpreter_that_will_not_do(ground: Ground, script: str | None, code: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    bin_folder = ground.folder / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (ground.folder / "train.py").write_text(
        "import os\nopen(os.path.join('ran', os.environ['MUSTER_ATTEMPT']), 'a').close()\n"
    )
    spoilt = (
        ground.hide(bin_folder)
        if script is None
        else ground.replace(python, script.format(python=sys.executable))
    )
    with spoilt:
        view = rolled_back(ground, launcher="torchrun", run="train.py", python=str(python))
    assert refusal(view) == code


def test_the_launcher_is_not_reached(ground: Ground) -> None:
    """Either of a pair may be to blame: both are left out."""
    first, second = (ground.cluster.machines[name] for name in ("node-1", CULPRIT))
    second.cut_from(first)
    try:
        ran = ground.folder / "ran"
        ran.mkdir()
        number = submit(ground.cluster, ground.folder, nodes=2, run="true", retry=RETRY)
        assert wait(ground.cluster, number) == 0
    finally:
        second.mend()
        first.mend()
    view = ground.cluster.client().job(int(number))
    cause = view.attempts[0].cause
    assert cause is not None
    assert cause.refusal == "launcher_unreachable"
    assert "node-2 says: " in cause.text
    assert [task.node for task in view.attempts[-1].tasks] == ["node-3", "node-4"]


def test_when_no_node_is_left_the_end_says_what_each_has_said(ground: Ground) -> None:
    cluster = ground.cluster
    work = ground.folder / "above" / "work"
    work.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        for name in cluster.machines:
            stack.enter_context(ground.hide(work.parent, name))
        number = submit(cluster, ground.folder, nodes=1, run="true", workdir=str(work), retry=RETRY)
        ended = cluster.muster("wait", "--timeout", "300s", number, check=False)
    assert ended.returncode == 123
    assert "node-2 refused: " in ended.stderr
    assert "| so did node-1" in ended.stderr
    assert cluster.client().job(int(number)).state is JobState.FAILED

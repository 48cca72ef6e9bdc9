"""Verbs about one thing: a node, the caller, the versions, the schema, the completion."""

import json

import msgspec
import pytest

from agent.shims.apart import FENCE, HIDDEN, KEYRINGS, PLACES, USERS
from muster.cli.cluster.version import skew
from muster.http import views as api
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

jsonschema = pytest.importorskip("jsonschema")

NODE = api.NodeView(
    name="gpu-01",
    link="connected",
    state=api.Reason("busy", "runs job 42"),
    address="10.0.0.1",
    pool="default",
    gpus=8,
    gpu_model="H100",
    cpus=96,
    memory_bytes=2**40,
    labels={"rack": "r7"},
    job=42,
    attempt=2,
    last_seen_s=2.0,
    version="0.1.0",
    hostname="worker-17",
    python="/venv/bin/python",
    interfaces=(
        api.InterfaceView("ib0", "infiniband", ("10.1.0.1/24",), True, True, 400_000),
        api.InterfaceView("eth0", "ethernet", ("10.0.0.1/24", "fd00::1/64"), False, False, 0),
    ),
    peer="10.0.0.9",
    connected_s=3700.0,
    jobs=(42,),
    gpus_used=4,
    devices=(
        api.GpuView(0, "0000:18:00.0", "GPU-1", "H100", 80 << 30, 0, None, 42, 2),
        api.GpuView(1, "0000:2a:00.0", "GPU-2", "H100", None, None, None, None, None),
        api.GpuView(2, "0000:3a:00.0", None, "", None, 1, "does not answer", None, None),
    ),
)


def test_a_node_is_shown_with_all_that_is_known(run: Run, fake: FakeCoordinator) -> None:
    fake.script.nodes = (NODE,)
    tasks = (
        api.TaskView("gpu-01", 1, "worker", TaskState.STARTED, (), None, None),
        api.TaskView("gpu-02", 0, "launcher", TaskState.STARTED, (), None, None),
    )
    at = timestamp(1.0)
    attempts = tuple(
        api.AttemptView(number, "running", of_it, None, None, at, at, None)
        for number, of_it in ((1, tasks[1:]), (2, tasks))
    )
    fake.put(job_view(attempts=attempts, attempt=2))
    text = run("node", "show", "gpu-01").stdout.decode()
    for line in (
        "node gpu-01  connected",
        "  runs job 42",
        "  link      connected for 1h01m, last message 2s ago",
        "  host name worker-17",
        "  address   10.0.0.1, calls from 10.0.0.9",
        "  GPUs      4/8 H100",
        "  memory    1024GiB",
        "  labels    rack=r7",
        "  job       42 (train) of alice, RUNNING, attempt 2, worker (node rank 1)",
        "0000:18:00.0  H100    80GiB     0  GPU-1  42",
        "0000:2a:00.0  H100        -     -  GPU-2  free",
        "0000:3a:00.0  -           -     1  -      does not answer",
        "ib0        infiniband       400G  yes   10.1.0.1/24",
        "eth0       ethernet, down      -  -     10.0.0.1/24, fd00::1/64",
    ):
        assert line in text.splitlines()
    found = json.loads(run("node", "show", "gpu-01", "--json").stdout)
    assert found["interfaces"][0]["rdma"] is True


def test_a_node_with_a_job_of_another_user_is_shown(run: Run, fake: FakeCoordinator) -> None:
    fake.script.nodes = (NODE,)
    done = run("node", "show", "gpu-01")
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "  job       42, which is another user's" in lines
    assert "ib0        infiniband       400G  yes   10.1.0.1/24" in lines


def test_faults_that_are_not_shown_are_counted(run: Run, fake: FakeCoordinator) -> None:
    fault = api.FaultView(9, 1, "gpu-01 was lost", 0)
    node = msgspec.structs.replace(NODE, faults=(fault,), faults_before=4)
    fake.script.nodes = (node,)
    fake.put(job_view())
    lines = run("node", "show", "gpu-01").stdout.decode().splitlines()
    at = lines.index("  fault     in 4 jobs before these")
    assert lines[at + 1] == "  fault     job 9, attempt 1: gpu-01 was lost"


def test_limits_that_are_not_enforced_are_shown(run: Run, fake: FakeCoordinator) -> None:
    apart = dict.fromkeys((FENCE, HIDDEN, KEYRINGS, PLACES, USERS), "it is off")
    unenforced = {"memory": "the memory controller is missing", **apart}
    fake.script.nodes = (msgspec.structs.replace(NODE, unenforced=unenforced),)
    fake.put(job_view())
    lines = run("node", "show", "gpu-01").stdout.decode().splitlines()
    assert "  limits    memory: not enforced here: the memory controller is missing" in lines
    for what in apart:
        assert f"  apart     {what}: not enforced here: it is off" in lines


def test_an_unknown_node_is_refused_with_the_nearest(run: Run, fake: FakeCoordinator) -> None:
    fake.script.nodes = (NODE,)
    done = run("node", "show", "gpu-1")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr == b"muster: there is no node 'gpu-1'\n  did you mean gpu-01?\n"


def test_whoami_is_the_name_alone(run: Run, fake: FakeCoordinator) -> None:
    done = run("whoami")
    assert (done.returncode, done.stdout) == (0, b"alice\n")
    assert fake.url.encode() in done.stderr
    assert json.loads(run("whoami", "--json").stdout)["role"] == "admin"


def test_versions_as_json(run: Run, fake: FakeCoordinator) -> None:
    found = json.loads(run("version", "--json").stdout)
    assert (found["coordinator"]["version"], found["url"]) == ("0.1.0", fake.url)
    alone = run("version", "--json", MUSTER_TOKEN="")
    assert (alone.returncode, json.loads(alone.stdout)["coordinator"]) == (125, None)


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        ("0.1.0", {}, None),
        ("0.1.7", {}, None),
        ("(not installed)", {}, None),
        ("0.2.0", {}, "the coordinator is older: upgrade it to 0.2.0"),
        ("0.1.0", {"version": "1.0.0"}, "the client is older: upgrade it to 1.0.0"),
        ("0.1.0", {"protocol_min": 9, "protocol_max": 9}, "in common: upgrade the client"),
    ],
)
def test_skew_is_said_with_what_to_upgrade(
    own: str, other: dict[str, object], said: str | None
) -> None:
    view = msgspec.structs.replace(api.VersionView("0.1.0", 1, 1, 7), **other)
    found = skew(own, view)
    assert (said is None) == (found is None)
    assert (said or "") in (found or "")


def test_the_schema_is_one_that_a_job_meets(run: Run) -> None:
    schema = json.loads(run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"run": "train.py", "nodes": 2}, schema)


@pytest.mark.parametrize(
    ("shell", "line"),
    [("bash", "complete"), ("zsh", "#compdef muster"), ("fish", "complete --no-files")],
)
def test_every_shell_gets_its_completion(run: Run, shell: str, line: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout.decode()
    assert run("completion", "csh").returncode == 2


def test_jobs_and_nodes_are_completed_by_asking(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(42, name="train"))
    fake.put(job_view(43, name="eval"))
    fake.script.nodes = (NODE,)

    def offered(words: str, at: int) -> list[str]:
        done = run(_MUSTER_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(at))
        assert (done.returncode, done.stderr) == (0, b"")
        return [line.removeprefix("plain,") for line in done.stdout.decode().split()]

    assert offered("muster show 4", 2) == ["43", "42"]
    assert offered("muster logs e", 2) == ["eval"]
    assert offered("muster node show g", 3) == ["gpu-01"]
    assert offered("muster att", 1) == ["attach"]
    assert offered("muster set 4", 2) == ["43", "42"]
    assert offered("muster set 42 pri", 3) == ["priority="]
    fake.stop()
    assert offered("muster show e", 2) == []


def test_attach_follows_and_ends_as_the_job_does(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(record(1, "one\n"))
    process = start("attach", "train")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    fake.put(ended(job_view(), JobState.FAILED, 7, "rank 1 exited with 7"))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7
    assert b"job 42 FAILED: rank 1 exited with 7" in err

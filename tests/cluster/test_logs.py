"""Logs through real daemons: every byte arrives, whatever dies or fills up."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.client import LogQuery
from muster.http.views import LogRecord
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, submit, until, wait

Start = Callable[..., subprocess.Popen[bytes]]

# Everything that a log is not supposed to hold, and some that it is.
ODD = (
    bytes(range(256)) * 40
    + b"\xf0\x9f\x98" * 1000
    + "ünïcödé €😀\n".encode() * 2000
    + b"".join(b"\r%3d%%|####" % at for at in range(101))
    + b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m\n"
    + os.urandom(300_000)
    + b"no end of line"
)


def out_of(cluster: LocalCluster, job: str, *options: str) -> bytes:
    """Return the standard output of `muster logs`, byte for byte."""
    argv = cluster.command("logs", *options, job)
    return subprocess.run(argv, env=cluster.base_env(), capture_output=True, check=True).stdout


def grow(file: Path, count: int) -> None:
    """Wait until a file has `count` more bytes."""
    size = file.stat().st_size + count
    until(lambda: file.stat().st_size > size, f"{file.name} grows")


@pytest.fixture
def start(own_cluster: LocalCluster) -> Iterator[Start]:
    """Start `muster` beside the test; what is left at its end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start_muster(*args: str, out: Path, err: Path | None = None) -> subprocess.Popen[bytes]:
        with out.open("wb") as to, (err or Path(os.devnull)).open("wb") as errors:
            argv, environ = own_cluster.command(*args), own_cluster.base_env()
            started.append(subprocess.Popen(argv, env=environ, stdout=to, stderr=errors))
        return started[-1]

    yield start_muster
    for process in started:
        process.kill()
        process.wait()


def test_odd_bytes_come_back_as_they_were(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(ODD)
    job = submit(cluster, tmp_path, run="cat odd; cat odd >&2")
    assert wait(cluster, job) == 0
    assert out_of(cluster, job) == ODD
    assert out_of(cluster, job, "-f", "--tail", "all", "--stdout") == ODD
    cluster.muster("logs", job, "--download", str(tmp_path / "d"))
    name = f"job-{job}.attempt-1.node-0-node-1.rank-0"
    names = {p.name: p for p in (tmp_path / "d").glob("job-*")}
    both = [path for path in names.values() if path.suffix in (".stdout", ".stderr")]
    assert [path.read_bytes() for path in both] == [ODD, ODD], (name, names)


def test_a_log_disk_that_is_full_holds_up_that_stream_only(
    own_cluster: LocalCluster, tmp_path: Path, start: Start
) -> None:
    """The limit is on the size of a file: the same errors as a full disk, without being root."""
    data = os.urandom(1 << 20)
    (tmp_path / "data").write_bytes(data)
    limit = resource.prlimit(own_cluster.coordinator.pid, resource.RLIMIT_FSIZE)
    small = (10 << 20, limit[1])  # the journal stays below it
    resource.prlimit(own_cluster.coordinator.pid, resource.RLIMIT_FSIZE, small)
    script = "for i in $(seq 12); do cat data; done; echo aside >&2; touch full"
    script += "\nuntil [ -e go ]; do sleep 0.05; done; echo after"
    job = submit(own_cluster, tmp_path, run=script)
    errors = tmp_path / "errors"
    followed = tmp_path / "followed"
    follower = start("logs", "-f", "--tail", "all", "--stdout", job, out=followed, err=errors)
    until(
        lambda: b"cannot store more of this now" in errors.read_bytes(),
        "the follower gets the reason",
    )
    assert b"[node-1 r0 stdout] from byte 10485760 on" in errors.read_bytes() or (
        b"[node-2 r0 stdout] from byte 10485760 on" in errors.read_bytes()
    )
    gaps = [
        record
        for record in own_cluster.client().logs(int(job), LogQuery(stream="stdout"))
        if isinstance(record, LogRecord) and record.gap is not None
    ]
    assert [(gap.len, gap.offset, gap.stream) for gap in gaps] == [(0, 10 << 20, "stdout")]
    # Another stream of the same node, other jobs and the journal do not notice.
    assert out_of(own_cluster, job, "--stderr") == b""
    until(
        lambda: own_cluster.muster("logs", "--rank", "0", "--stderr", job).stderr == "aside\n",
        "the other stream comes",
    )
    for _ in range(2):
        assert wait(own_cluster, submit(own_cluster, tmp_path, run="true")) == 0
    assert own_cluster.client().job(int(job)).state is JobState.RUNNING
    resource.prlimit(own_cluster.coordinator.pid, resource.RLIMIT_FSIZE, limit)
    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    assert follower.wait(300) == 0
    assert followed.read_bytes() == data * 12 + b"after\n"
    assert out_of(own_cluster, job) == data * 12 + b"after\n"


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.long)])
def test_followers_lose_and_double_nothing_over_kills_of_the_coordinator(
    own_cluster: LocalCluster, tmp_path: Path, start: Start, kills: int
) -> None:
    script = """
    echo up > up.$MUSTER_NODE_RANK
    i=0; until [ -e stop ]; do i=$((i+1)); echo "$MUSTER_NODE_RANK line $i"; sleep 0.002; done
    echo "$MUSTER_NODE_RANK end $i"
    """
    job = submit(own_cluster, tmp_path, nodes=2, run=script)
    for rank in (0, 1):
        await_file(tmp_path / f"up.{rank}")
    wanted = {"merged": ["--rank", "all"], "one": ["--rank", "1"]}
    followers = [
        start("logs", "-f", "--tail", "all", "--no-prefix", *options, job, out=tmp_path / name)
        for name, options in wanted.items()
    ]
    for _ in range(kills):
        for name in wanted:
            grow(tmp_path / name, 500)
        own_cluster.coordinator.kill()
        own_cluster.coordinator.start()
    (tmp_path / "stop").touch()
    assert wait(own_cluster, job) == 0
    assert [process.wait(300) for process in followers] == [0, 0]
    for name, ranks in {"merged": ("0", "1"), "one": ("1",)}.items():
        lines = (tmp_path / name).read_text().splitlines()
        for who in ranks:
            mine = [line for line in lines if line.startswith(f"{who} ")]
            count = len(mine) - 1
            expected = [f"{who} line {i}" for i in range(1, count + 1)]
            assert mine == [*expected, f"{who} end {count}"]


def test_logs_of_a_job_that_waits_begin_when_it_starts(
    own_cluster: LocalCluster, tmp_path: Path, start: Start
) -> None:
    first = submit(own_cluster, tmp_path, nodes=2, run="until [ -e go ]; do sleep 0.05; done")
    second = submit(own_cluster, tmp_path, nodes=2, run="echo at last; exit 3")
    out, err = tmp_path / "out", tmp_path / "err"
    process = start("logs", "-f", "--exit-status", second, out=out, err=err)
    until(lambda: b"is QUEUED" in err.read_bytes(), "it says that it waits")
    (tmp_path / "go").touch()
    assert process.wait(300) == 3
    assert out.read_bytes() == b"at last\n"
    assert wait(own_cluster, first) == 0


def test_a_node_that_never_heard_of_a_task_has_no_log_of_it(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    agent = own_cluster.nodes["node-2"]
    os.kill(agent.pid, signal.SIGSTOP)
    job = submit(own_cluster, tmp_path, placement={"include": ["node-2"]}, run="true")
    own_cluster.muster("cancel", job)
    agent.kill()
    agent.start()
    assert wait(own_cluster, job) == 121
    done = own_cluster.muster("logs", "-f", job)
    assert "it never started" in done.stderr
    assert "not complete" not in done.stderr


@pytest.mark.parametrize("verb", ["logs", "logs -f"])
def test_grep_and_timestamps_on_a_real_job(
    cluster: LocalCluster, tmp_path: Path, verb: str
) -> None:
    job = submit(cluster, tmp_path, run="echo one; echo two; echo three")
    assert wait(cluster, job) == 0
    shown = cluster.muster(*verb.split(), "--grep", "^t", "--timestamps", "--since", "1h", job)
    lines = [line.split("Z ") for line in shown.stdout.splitlines()]
    assert [line[1] for line in lines] == ["two", "three"]
    assert cluster.muster("logs", "--since", "2100-01-01T00:00:00Z", job).stdout == ""

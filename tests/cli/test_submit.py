"""`muster submit`: checked here, handed over once, the id alone on stdout."""

import json
import signal
from pathlib import Path

import pytest

from muster.protocol import http as api
from muster.protocol.states import JobState
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record


def mapping_of(fake: FakeCoordinator) -> dict[str, object]:
    ((_, mapping),) = fake.script.submitted.values()
    assert isinstance(mapping, dict)
    return mapping


def test_the_id_is_alone_on_stdout(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py --lr 1\nworkdir: /data/x\n")
    done = run("submit", "-f", "job.yaml")
    assert (done.returncode, done.stdout) == (0, b"42\n")
    assert done.stderr == b"muster: submitted job 42 (train), QUEUED\n"
    assert mapping_of(fake) == {"run": "train.py --lr 1", "workdir": "/data/x"}


def test_options_change_what_the_file_says(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nnum_nodes: 2\nenv: {A: '1'}\n")
    arguments = "--nodes 4 --set retry.user=2 -e B=2 -e C --name n --time-limit 2h --priority 60"
    done = run("submit", "-f", "job.yaml", *arguments.split(), C="from me")
    assert done.returncode == 0, done.stderr
    assert mapping_of(fake) == {
        "run": "train.py",
        "nodes": "4",
        "retry": {"user": "2"},
        "env": {"A": "1", "B": "2", "C": "from me"},
        "name": "n",
        "time_limit": "2h",
        "priority": "60",
    }


def test_a_bare_command_runs_where_one_stands(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    done = run("submit", "--nodes", "2", "--", "python", "train.py", "--nodes", "7")
    assert done.stdout == b"42\n"
    assert mapping_of(fake) == {
        "run": ["train.py", "--nodes", "7"],
        "nodes": "2",
        "workdir": str(tmp_path),
    }
    assert f"muster: workdir: {tmp_path} (this folder".encode() in done.stderr


def test_a_command_that_is_no_python_is_said_to_be_none(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "--", "sleep", "infinity")
    assert b"launcher: none" in done.stderr
    assert mapping_of(fake)["launcher"] == "none"


def test_a_job_on_standard_input(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "-f", "-")
    out, _ = process.communicate(b"run: train.py\n", timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"42\n")


def test_every_mistake_is_named_at_once_and_nothing_is_sent(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nnodez: 2\nworkdir: .\ntime_limit: 90\n")
    done = run("submit", "-f", "job.yaml")
    assert (done.returncode, done.stdout) == (2, b"")
    for field in (b"nodez", b"workdir", b"time_limit"):
        assert field in done.stderr
    assert not fake.script.requests


def test_what_only_the_coordinator_knows_is_refused_by_field(
    run: Run, fake: FakeCoordinator
) -> None:
    done = run("submit", "--pool", "nowhere", "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"pool: `nowhere`: there is no such pool\n      try default" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no job"),
        (("job.yaml",), "muster submit -f job.yaml"),
        (("--", "--lr", "1"), "begins with an option"),
        (("-f", "missing.yaml"), "cannot be read"),
        (("-f", "job.yaml", "--set", "nodes"), "is not `key=value`"),
    ],
)
def test_wrong_usage_is_said(
    run: Run, fake: FakeCoordinator, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\n")
    done = run("submit", *arguments)
    assert done.returncode in {2, 125}
    assert said in done.stderr.decode()
    assert not fake.script.requests


def test_a_dry_run_shows_the_defaults_and_calls_nobody(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\n")
    done = run("submit", "-f", "job.yaml", "--dry-run", "--json", MUSTER_TOKEN="")
    assert json.loads(done.stdout)["priority"] == 50
    assert b"priority: 50\n" in run("submit", "-f", "job.yaml", "--dry-run").stdout
    assert not fake.script.requests


def test_the_same_key_is_the_same_job(run: Run, fake: FakeCoordinator) -> None:
    arguments = ("submit", "--idempotency-key", "k", "--json", "--", "python", "a.py")
    ids = {json.loads(run(*arguments).stdout)["id"] for _ in range(2)}
    assert ids == {42}


def test_wait_ends_with_the_jobs_code(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "--wait", "--", "python", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n", "the id is there before the job ends"
    fake.wait_for_request("/wait")
    fake.put(ended(job_view(), JobState.TIMEOUT, 124, "over its time limit of 1h"))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 124
    assert b"job 42 TIMEOUT: over its time limit of 1h (exit code 124)" in err


def test_follow_prints_the_logs_and_ends_with_the_jobs_code(
    start: Start, fake: FakeCoordinator
) -> None:
    process = start("submit", "--follow", "--", "python", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n"
    fake.log(*(record(number, f"{number}\n") for number in range(1, 31)))
    fake.put(ended(job_view(reason=api.Reason("x", "")), JobState.FAILED, 9))
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == b"".join(b"%d\n" % number for number in range(1, 31))
    assert process.returncode == 9


def test_a_submit_lasts_over_a_restart(start: Start, fake: FakeCoordinator) -> None:
    fake.stop()
    process = start("submit", "--", "python", "train.py")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, b"")
    assert any(b"trying again for 30s" in line for line in lines)
    fake.start()
    assert process.communicate(timeout=DEADLINE_S)[0] == b"42\n"
    assert len(fake.script.submitted) == 1


def test_ctrl_c_while_waiting_detaches(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "--wait", "--", "python", "train.py")
    fake.wait_for_request("/wait")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"detached; job 42 goes on: muster logs -f 42 | muster cancel 42" in err
    assert not fake.script.cancelled

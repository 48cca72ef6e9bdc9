"""Output that nobody reads, or that finds no room: the command is still done, and exits with its
code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.protocol.states import JobState
from tests.cli.conftest import DEADLINE_S, Start
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record


def without_a_reader(
    environ: dict[str, str], closed: str, *arguments: str
) -> tuple[int, bytes, bytes]:
    """Run `muster` with standard output ("o") or standard error ("e"), or both, going to a pipe
    whose reader has left; the code, and what came of the others."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli", *arguments],
        env=environ,
        cwd=environ["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=writing if "o" in closed else subprocess.PIPE,
        stderr=writing if "e" in closed else subprocess.PIPE,
    )
    os.close(writing)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out or b"", err or b""


@pytest.mark.parametrize("closed", ["o", "e"])
@pytest.mark.parametrize(
    "verb",
    [
        "wait 42",
        "wait 42 --json",
        "attach 42",
        "attach 42 --json",
        "logs -f 42 --exit-status",
        "submit --wait -- true",
        "submit --wait --json -- true",
        "submit --follow -- true",
    ],
)
def test_the_code_is_the_jobs_though_nobody_reads(
    fake: FakeCoordinator, environ: dict[str, str], verb: str, closed: str
) -> None:
    spec = {"run": ["train.py"], "notes": "x" * 20_000}
    fake.put(ended(job_view(spec=spec), JobState.FAILED, 7, "rank 0 exited with code 7"))
    fake.log(record(1, "loss 0.5\n"))
    assert without_a_reader(environ, closed, *verb.split())[0] == 7


def test_a_job_that_goes_on_is_no_success_where_the_reader_has_left(
    fake: FakeCoordinator, environ: dict[str, str]
) -> None:
    fake.put(job_view())
    fake.log(record(1, "loss 0.5\n"))
    code, _, err = without_a_reader(environ, "o", "attach", "42")
    assert code == 130
    assert b"job 42 continues: muster attach 42 | muster cancel 42" in err
    assert without_a_reader(environ, "o", "logs", "-f", "42")[0] == 0


@pytest.mark.parametrize("closed", ["e", "oe"])
def test_a_command_is_done_even_if_nobody_reads_its_output(
    fake: FakeCoordinator, environ: dict[str, str], closed: str
) -> None:
    code, out, _ = without_a_reader(environ, closed, "submit", "--", "true")
    assert (code, len(fake.script.submitted)) == (0, 1)
    assert out == (b"" if "o" in closed else b"42\n")
    assert without_a_reader(environ, closed, "nosuch")[0] == 2
    assert without_a_reader(environ, closed, "show", "7")[0] == 125


@pytest.mark.parametrize("verb", ["ps -a", "attach 42", "submit -- true"])
def test_a_full_disk_is_reported_with_a_code_of_ours(
    fake: FakeCoordinator, environ: dict[str, str], verb: str
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, "loss 0.5\n"))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "muster.cli", *verb.split()],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 125
    assert done.stderr.endswith(b"muster: No space left on device\n")
    if verb.startswith("submit"):
        assert b"submitted job 42" in done.stderr


def test_ctrl_c_detaches_though_it_has_ended_the_reader_too(
    fake: FakeCoordinator, start: Start
) -> None:
    """`muster logs -f 42 --rank all | cat`, with a line of which the end has not come yet."""
    fake.put(job_view())
    fake.log(record(1, "10%"), record(2, "other\n", rank=1))
    process = start("logs", "-f", "--rank", "all", "42")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"[gpu-01 r1] other\n"
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert b"detached; job 42 continues" in process.stderr.read()
    assert process.wait(DEADLINE_S) == 130

"""`muster logs`: which lines, how they look, and what a terminal is spared."""

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from muster.http import views as api
from muster.protocol.states import JobState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, Run
from tests.client.fake_coordinator import SERVER_TIME_S, FakeCoordinator, ended, job_view, record

HOSTILE = b"loss \x1b[32m0.5\x1b[0m\x1b]0;owned\x07\x1b[2J 10%\r20%\n"


def on_a_terminal(environ: dict[str, str], *arguments: str) -> bytes:
    """Return everything that `muster` writes to a terminal that is both of its outputs."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:
            pass  # the end of a pseudo-terminal
        assert process.wait(DEADLINE_S) == 0
    return shown


def asked(fake: FakeCoordinator) -> dict[str, str]:
    """The query of the last request for logs."""
    line = [line for line in fake.script.requests if "/logs?" in line][-1]
    return {name: values[0] for name, values in parse_qs(urlsplit(line).query).items()}


def test_a_terminal_obeys_colours_only_and_a_pipe_gets_the_bytes(
    run: Run, fake: FakeCoordinator, environ: dict[str, str]
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    cut = HOSTILE.index(b"]0;")
    fake.log(record(1, HOSTILE[:cut]), record(2, HOSTILE[cut:]))
    shown = on_a_terminal(environ, "logs", "42")
    assert b"loss \x1b[32m0.5\x1b[0m\\x1b]0;owned\\x07\\x1b[2J 10%\r20%\r\n" in shown
    assert HOSTILE[:-1] in on_a_terminal(environ, "logs", "42", "--raw")
    assert run("logs", "42").stdout == HOSTILE
    help_text = run("logs", "--help").stdout
    assert b"spelled out" in help_text
    assert b"--raw" in help_text


def test_lines_of_several_ranks_are_spelled_and_leave_no_colour(
    fake: FakeCoordinator, environ: dict[str, str]
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, "\x1b[31mred\n"), record(2, "\x1b[5Aup\n", rank=1))
    shown = on_a_terminal(environ, "logs", "42", "--rank", "all")
    assert b"[gpu-01 r0] \x1b[31mred\x1b[0m\r\n[gpu-01 r1] \\x1b[5Aup\r\n" in shown


def test_updates_of_several_progress_bars_come_as_they_happen(
    run: Run, fake: FakeCoordinator
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(
        record(1, "10%\r20%"),
        record(2, "\r30%\r"),
        record(3, "one\r\n", rank=1),
        record(4, "\n"),
    )
    # The last \r may yet be one half of \r\n, so rank 0's 30 % waits for what follows it.
    assert run("logs", "42", "--rank", "all").stdout == (
        b"[gpu-01 r0] 10%\r[gpu-01 r0] 20%\r\n[gpu-01 r1] one\r\n[gpu-01 r0] 30%\r\n"
    )


def test_each_line_begins_with_the_time_at_which_it_began(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    times = [datetime(2026, 11, 22, 1, 30, second, 4321, UTC) for second in range(3)]
    texts = ["first\nhal", "f\nthird\n", "last"]
    fake.log(
        *(
            msgspec.structs.replace(record(number, text), ts=ts)
            for number, (ts, text) in enumerate(zip(times, texts, strict=True), 1)
        )
    )
    assert run("logs", "42", "--timestamps").stdout.decode().splitlines() == [
        "2026-11-22T01:30:00.004Z first",
        "2026-11-22T01:30:00.004Z half",
        "2026-11-22T01:30:01.004Z third",
        "2026-11-22T01:30:02.004Z last",
    ]
    both = run("logs", "42", "--timestamps", "--rank", "all").stdout
    assert both.startswith(b"2026-11-22T01:30:00.004Z [gpu-01 r0] first\n")


def test_grep_takes_whole_lines(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(record(1, "step 1 lo"), record(2, "ss 0.5\nother\nstep 2 loss 0.4"))
    assert run("logs", "42", "--grep", r"loss [\d.]+$").stdout == (
        b"step 1 loss 0.5\nstep 2 loss 0.4\n"
    )
    bad = run("logs", "42", "--grep", "lo(ss")
    assert bad.returncode == 2
    assert b"is not a valid regular expression" in bad.stderr


def test_since_is_a_time_of_the_coordinators_clock(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    run("logs", "42", "--since", "2026-11-22T03:30:00+02:00")
    assert asked(fake)["since"] == "2026-11-22T01:30:00+00:00"
    run("logs", "42", "--since", "10m")
    at = datetime.fromisoformat(asked(fake)["since"]).timestamp()
    assert at == SERVER_TIME_S - 600
    for wrong in ("yesterday", "10", "2026-11-22T01:30:00"):
        done = run("logs", "42", "--since", wrong)
        assert done.returncode == 2, wrong
        assert b"write `10" in done.stderr


def test_the_previous_attempt(run: Run, fake: FakeCoordinator) -> None:
    # Numbers are left out after a restore.
    numbers = (1, 2, 1003)
    attempts = tuple(
        api.AttemptView(number, "CLOSED", (), None, None, timestamp(1), None, None)
        for number in numbers
    )
    fake.put(job_view(attempt=1003, attempts=attempts))
    run("logs", "42", "--previous")
    assert asked(fake)["attempt"] == "2"
    fake.put(job_view(attempt=1))
    done = run("logs", "42", "--previous")
    assert done.returncode == 125
    assert b"was tried once" in done.stderr
    assert run("logs", "42", "--previous", "--attempt", "1").returncode == 2


def test_a_gap_is_reported_on_stderr(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    gap = msgspec.structs.replace(record(2, ""), offset=4, gap="the log disk is full")
    fake.log(record(1, "one\n"), gap, record(3, "two\n"))
    done = run("logs", "42")
    assert done.stdout == b"one\ntwo\n"
    assert done.stderr == b"muster: [gpu-01 r0 stdout] from byte 4 on: the log disk is full\n"


def test_logs_that_are_not_complete_are_no_success(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.FAILED, 3))
    fake.log(record(1, "one\n"))
    fake.script.undelivered = "not all logs were delivered by gpu-01"
    done = run("logs", "42")
    assert (done.stdout, done.returncode) == (b"one\n", 125)
    assert b"not complete: not all logs were delivered by gpu-01" in done.stderr
    assert run("logs", "-f", "--exit-status", "42").returncode == 3, "the job's code says more"


def part(
    number: int, data: str | bytes, offset: int, stream: str = "stdout", rank: int | None = 0
) -> api.LogRecord:
    made = record(number, data, rank=rank, stream=stream)
    return msgspec.structs.replace(made, offset=offset, node_rank=0)


OUT = "job-42.attempt-1.node-0-gpu-01.rank-0.stdout"
LAUNCHER = "job-42.attempt-1.node-0-gpu-01.launcher"


def test_a_download_is_one_file_for_each_stream(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    fake.put(ended(job_view(), JobState.FAILED, 3))
    fake.log(
        part(1, b"\xff\x00", 0),
        part(2, "launched\n", 0, "launcher", None),
        part(3, "err\n", 0, "stderr"),
        part(4, "two\n", 2),
    )
    done = run("logs", "42", "--download", "new/logs")
    folder = tmp_path / "new/logs"
    assert (folder / OUT).read_bytes() == b"\xff\x00two\n"
    assert (folder / LAUNCHER).read_text() == "launched\n"
    names = {LAUNCHER, OUT, OUT.replace("stdout", "stderr")}
    assert {p.name for p in folder.iterdir()} == {*names, ".job-42.resume"}
    assert set(done.stdout.decode().split()) == {f"new/logs/{name}" for name in names}
    assert "rank" not in asked(fake)
    assert "attempt" not in asked(fake)
    assert run("logs", "42", "--download", "new/logs", "--exit-status").returncode == 3
    assert run("logs", "42", "--download", "x", "--tail", "3").returncode == 2


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_download_that_is_not_complete_is_no_success(
    run: Run, fake: FakeCoordinator, options: tuple[str, ...]
) -> None:
    fake.put(ended(job_view(), JobState.FAILED, 3))
    fake.log(record(1, "x\n"))
    fake.script.undelivered = "not all logs were delivered by gpu-02"
    done = run("logs", "42", "--download", "d", *options)
    assert done.returncode == 125
    assert b"rank-0.stdout" in done.stdout
    assert b"the logs of job 42 are not complete: not all logs were delivered" in done.stderr
    assert run("logs", "42", "--download", "d", "--exit-status").returncode == 3


def test_a_download_goes_on_where_it_stopped(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    fake.put(job_view())
    fake.log(part(1, "one\n", 0))
    run("logs", "42", "--download", "d")
    fake.log(part(2, "two\n", 4))
    run("logs", "42", "--download", "d")
    assert asked(fake)["cursor"] == "1"
    assert (tmp_path / "d" / OUT).read_text() == "one\ntwo\n"
    (tmp_path / "d" / OUT).write_text("")
    run("logs", "42", "--download", "d")
    assert "cursor" not in asked(fake), "what is not there is fetched again"
    assert (tmp_path / "d" / OUT).read_text() == "one\ntwo\n"
    fake.put(job_view(submitted_at=datetime(2020, 1, 1, tzinfo=UTC)))
    other = run("logs", "42", "--download", "d")
    assert other.returncode == 125
    assert b"another job 42" in other.stderr


@pytest.mark.parametrize("node", ["../../etc", "a/b", "..", "x\n", "."])
def test_a_download_never_leaves_its_folder(
    run: Run, fake: FakeCoordinator, tmp_path: Path, node: str
) -> None:
    fake.put(job_view())
    fake.log(msgspec.structs.replace(part(1, "x", 0), node=node))
    done = run("logs", "42", "--download", "d")
    assert done.returncode == 125
    assert b"cannot be a file" in done.stderr
    assert b"Traceback" not in done.stderr
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [".job-42.resume"]


def test_a_download_follows_no_link(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    fake.put(job_view())
    fake.log(part(1, "x", 0))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / OUT).symlink_to(victim)
    done = run("logs", "42", "--download", "d")
    assert done.returncode == 125
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--rank", "-1", "neither a number from 0 nor `all`"),
        ("--rank", "9" * 5000, "is over 1000000000"),
        ("--tail", "x", "neither a number from 0 nor `all`"),
        ("--tail", "100001", "is over 100000, and not `all`"),
    ],
)
def test_a_wrong_number_is_refused_with_its_option(
    run: Run, fake: FakeCoordinator, option: str, value: str, said: str
) -> None:
    done = run("logs", "42", option, value)
    assert done.returncode == 2
    assert f"Invalid value for '{option}': '{value}' " in done.stderr.decode()
    assert said in done.stderr.decode()
    assert not fake.script.requests


def test_a_tail_of_nothing_is_no_option_of_a_download(run: Run, fake: FakeCoordinator) -> None:
    assert run("logs", "42", "--download", "logs", "--tail", "0").returncode == 2


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            job_view(state=JobState.QUEUED, started_at=None),
            "job 42 has no output: it is QUEUED\n  why: muster explain 42\n",
        ),
        (
            ended(job_view(started_at=None), JobState.CANCELLED, 130),
            "job 42 has no output: it never started\n  why: muster show 42\n",
        ),
        (
            ended(job_view(), JobState.SUCCEEDED, 0),
            "rank 0 of job 42 has no output\n  every rank: muster logs --rank all 42\n",
        ),
        (
            ended(job_view(), JobState.FAILED, 127),
            (
                "rank 0 of job 42 has no output\n"
                "  every rank: muster logs --rank all 42\n"
                "  why it ended: muster show 42\n"
            ),
        ),
        (
            job_view(),
            ("rank 0 of job 42 has no output so far\n  every rank: muster logs --rank all 42\n"),
        ),
    ],
)
def test_a_job_that_wrote_nothing_is_said_to_have(
    run: Run, fake: FakeCoordinator, view: api.JobView, said: str
) -> None:
    fake.put(view)
    done = run("logs", "42")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"muster: {said}"
    assert run("logs", "42", "--tail", "0").stderr == b""
    fake.log(record(1, "one\n"))
    assert run("logs", "42").stderr == b""
    if view.started_at is not None:
        assert b"no output for these options" in run("logs", "42", "--stderr").stderr


@pytest.mark.parametrize(
    ("view", "hinted"),
    [
        (job_view(), True),
        (job_view(nodes=1, spec={"run": ["train.py"], "nproc_per_node": 8}), True),
        (job_view(nodes=1, spec={"run": ["train.py"], "nproc_per_node": 1}), False),
        (job_view(nodes=1, spec={"run": "nvidia-smi", "launcher": "none"}), False),
        # A job that ended before it started has no other rank, either.
        (ended(job_view(started_at=None), JobState.FAILED, 123), False),
    ],
)
def test_a_terminal_is_informed_of_the_ranks_that_are_not_shown(
    environ: dict[str, str], fake: FakeCoordinator, view: api.JobView, hinted: bool
) -> None:
    fake.script.jobs[42] = view
    shown = on_a_terminal(environ, "logs", "42")
    assert (b"rank 0 only; every rank: muster logs --rank all 42" in shown) is hinted
